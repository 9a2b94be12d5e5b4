//! Block hashing: which digest names the tokens up to a block's end.
//!
//! The digest of a block is the hash of the tuple `(parent digest, block tokens, extra keys)`,
//! serialized the way Python would: by pickle protocol 5 or by canonical CBOR (RFC 8949, section
//! 4.2). So digests are byte-identical to those of an engine that hashes the same tuple in Python.
//! They can be compared with digests of another process. No Python object is built: the encoders
//! write the bytes into one reused buffer.
//!
//! | file | noun |
//! |---|---|
//! | `algorithm` | which encoding, which hash function, how long a digest |
//! | `value` | extra keys: the Python values that may stand beside the tokens |
//! | `pickle`, `cbor` | the two encodings |
//! | `key` | [`BlockKey`]: what the digest is made of |
//! | `block` | [`BlockHasher`]: one block's digest |
//! | `chain` | [`HashChain`]: the digests of a growing token sequence |
//! | `keyed` | [`KeyedDigests`]: digests that say only which hashes are equal |
//! | `known` | [`KnownPrefixes`]: tokens that were hashed, and their digests |
//! | `digest` | [`Digest`]: the result |
//!
//! Nothing here knows what a block holds or where it lies.
#![forbid(unsafe_code)]

mod algorithm;
mod block;
mod cbor;
mod chain;
mod digest;
mod error;
mod key;
mod keyed;
mod known;
mod pickle;
mod token;
mod value;

pub use algorithm::Algorithm;
pub use block::BlockHasher;
pub use chain::HashChain;
pub use digest::Digest;
pub use error::HashError;
pub use key::BlockKey;
pub use keyed::{Hashes, KEY_BYTES, KeyedDigests, TEXT_BYTES};
pub use known::{KnownPath, KnownPrefixes};
pub use token::{Token, TokenRow};
pub use value::Value;
