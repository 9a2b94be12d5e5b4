//! [`HashError`]: what can be wrong with the input of a hash.

use thiserror::Error;

/// Input that cannot be hashed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HashError {
    /// A name that is none of the algorithms'.
    #[error("unknown hash algorithm {0:?}; use one of sha256, sha256_cbor, xxhash, xxhash_cbor")]
    UnknownAlgorithm(String),
    /// A digest of another algorithm, or no digest at all.
    #[error("a {algorithm} digest has {expected} bytes, not {actual}")]
    DigestLength {
        /// The algorithm that the digest was given to.
        algorithm: &'static str,
        /// Bytes of its digests.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// Blocks without tokens.
    #[error("block_size is 0; a block holds at least 1 token")]
    ZeroBlockSize,
    /// Extra keys that do not match the blocks that are to be hashed.
    #[error(
        "{actual} extra keys for {expected} full blocks; give one for each block, or none at all"
    )]
    ExtraKeyCount {
        /// Blocks that the tokens complete.
        expected: usize,
        /// Extra keys given.
        actual: usize,
    },
}
