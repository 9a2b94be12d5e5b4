//! [`Algorithm`]: which encoding, which hash function, how long a digest.

use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use super::HashError;
use crate::Digest;

/// How a block is hashed; the names are those of vLLM's `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// SHA-256 of the pickle.
    #[default]
    Sha256,
    /// SHA-256 of the canonical CBOR.
    Sha256Cbor,
    /// 128-bit XXH3 of the pickle.
    Xxhash,
    /// 128-bit XXH3 of the canonical CBOR.
    XxhashCbor,
}

/// How the hashed tuple becomes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Pickle,
    Cbor,
}

impl Algorithm {
    /// All four algorithms.
    pub const ALL: [Self; 4] = [Self::Sha256, Self::Sha256Cbor, Self::Xxhash, Self::XxhashCbor];

    /// The name by which [`Algorithm::from_str`] knows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha256Cbor => "sha256_cbor",
            Self::Xxhash => "xxhash",
            Self::XxhashCbor => "xxhash_cbor",
        }
    }

    /// Bytes of a digest: 32 or 16.
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Sha256 | Self::Sha256Cbor => 32,
            Self::Xxhash | Self::XxhashCbor => 16,
        }
    }

    /// Reads a digest of this algorithm.
    ///
    /// # Errors
    /// [`HashError::DigestLength`] unless there are [`Algorithm::digest_len`] bytes.
    pub fn digest_from(self, bytes: &[u8]) -> Result<Digest, HashError> {
        Digest::from_slice(bytes).filter(|_| bytes.len() == self.digest_len()).ok_or(
            HashError::DigestLength {
                algorithm: self.name(),
                expected: self.digest_len(),
                actual: bytes.len(),
            },
        )
    }

    /// The bytes of a digest of this algorithm, without the padding.
    pub fn digest_bytes(self, digest: &Digest) -> &[u8] {
        &digest.as_bytes()[..self.digest_len()]
    }

    pub(super) const fn encoding(self) -> Encoding {
        match self {
            Self::Sha256 | Self::Xxhash => Encoding::Pickle,
            Self::Sha256Cbor | Self::XxhashCbor => Encoding::Cbor,
        }
    }

    pub(super) fn digest_of(self, message: &[u8]) -> Digest {
        match self {
            Self::Sha256 | Self::Sha256Cbor => {
                Digest::from(<[u8; 32]>::from(Sha256::digest(message)))
            }
            // XXH3's canonical form is big-endian.
            Self::Xxhash | Self::XxhashCbor => Digest::from(xxh3_128(message).to_be_bytes()),
        }
    }
}

impl FromStr for Algorithm {
    type Err = HashError;

    fn from_str(name: &str) -> Result<Self, HashError> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| HashError::UnknownAlgorithm(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_found_by_its_name() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
    }

    #[test]
    fn an_unknown_name_is_told_what_there_is() {
        let error = "md5".parse::<Algorithm>().unwrap_err();
        assert!(error.to_string().contains("\"md5\""));
        assert!(Algorithm::ALL.iter().all(|known| error.to_string().contains(known.name())));
    }

    #[test]
    fn a_digest_of_another_length_is_refused() {
        for algorithm in Algorithm::ALL {
            for len in [0, 15, 16, 17, 31, 32, 33] {
                let result = algorithm.digest_from(&vec![1; len]);
                assert_eq!(result.is_ok(), len == algorithm.digest_len(), "{algorithm:?} {len}");
            }
        }
    }

    #[test]
    fn digests_of_nothing_are_the_published_ones() {
        let sha = Algorithm::Sha256.digest_of(b"");
        assert_eq!(sha.as_bytes()[..4], [0xe3, 0xb0, 0xc4, 0x42]);
        let xxh = Algorithm::Xxhash.digest_of(b"");
        assert_eq!(xxh.as_bytes()[..4], [0x99, 0xaa, 0x06, 0xd3]);
        assert_eq!(xxh.as_bytes()[16..], [0; 16]);
    }
}
