//! [`Digest`]: the chained hash of all tokens up to a block's end.

use std::fmt;
use std::hash::{Hash, Hasher};

/// A 256-bit digest, or a 128-bit one followed by zeros.
///
/// The hash algorithm decides how many bytes count. That number is the same for every digest of a
/// run, so a digest does not store it. Two digests are equal when all 32 bytes are. Hashing one
/// feeds its first 8 bytes to the hasher: they are uniform already.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest([u8; Digest::MAX_LEN]);

impl Digest {
    /// Bytes of the longest digest.
    pub const MAX_LEN: usize = 32;

    /// A digest of up to [`Digest::MAX_LEN`] bytes, or `None` when there are more.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut storage = [0; Self::MAX_LEN];
        storage.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(storage))
    }

    /// All 32 bytes; those past the algorithm's length are zero.
    pub const fn as_bytes(&self) -> &[u8; Self::MAX_LEN] {
        &self.0
    }

    /// The first 8 bytes, as the key of a hash table.
    pub fn prefix(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|i| self.0[i]))
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl From<[u8; 16]> for Digest {
    fn from(bytes: [u8; 16]) -> Self {
        let mut storage = [0; Self::MAX_LEN];
        storage[..16].copy_from_slice(&bytes);
        Self(storage)
    }
}

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.prefix());
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn a_short_digest_is_padded_with_zeros() {
        let digest = Digest::from([7; 16]);
        assert_eq!(digest.as_bytes()[..16], [7; 16]);
        assert_eq!(digest.as_bytes()[16..], [0; 16]);
        assert_eq!(Digest::from_slice(&[7; 16]), Some(digest));
    }

    #[test]
    fn more_than_32_bytes_are_refused() {
        assert_eq!(Digest::from_slice(&[0; 33]), None);
    }

    #[test]
    fn digests_that_differ_only_in_the_last_byte_are_different() {
        let mut bytes = [1; 32];
        let a = Digest::from(bytes);
        bytes[31] = 2;
        assert_ne!(a, Digest::from(bytes));
        assert_eq!(a.prefix(), Digest::from(bytes).prefix());
    }

    #[test]
    fn only_the_first_eight_bytes_are_fed_to_a_hasher() {
        let hash = |bytes| rustc_hash::FxBuildHasher.hash_one(Digest::from(bytes));
        let mut bytes = [1; 32];
        let first = hash(bytes);
        bytes[8] = 2;
        assert_eq!(hash(bytes), first);
        bytes[7] = 2;
        assert_ne!(hash(bytes), first);
    }
}
