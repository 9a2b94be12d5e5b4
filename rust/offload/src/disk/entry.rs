//! [`Entry`]: where a chunk lies in a segment.

use hybrid_blocks::{Digest, GroupId, Key};

use crate::key::write_key;

/// One chunk of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the chunk.
    pub key: Key,
    /// Tokens that the key stands for.
    pub num_tokens: u32,
    /// First byte in the file, a multiple of a page.
    pub offset: u64,
    /// Bytes of the chunk, without padding.
    pub num_bytes: u32,
    /// CRC-32C of the namespace, the digest, the group, the tokens and the chunk's bytes.
    pub checksum: u32,
}

/// The checksum of a namespace. All others of its files continue it, so a page of another namespace's
/// file is damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u32);

impl Seed {
    /// The seed of the files of a namespace, by its [fingerprint](crate::Namespace::fingerprint).
    pub fn of(namespace: &[u8; 32]) -> Self {
        Self(crc32c::crc32c(namespace))
    }

    pub(super) fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, bytes)
    }
}

impl Entry {
    /// Bytes of an encoded entry.
    pub const LEN: usize = 64;

    /// The checksum of a chunk under this entry's name. It covers namespace and name, so that no other
    /// chunk passes for this one.
    pub fn checksum_of(&self, seed: Seed, bytes: &[u8]) -> u32 {
        let mut name = [0; 40];
        write_key(&self.key, &mut name);
        name[36..].copy_from_slice(&self.num_tokens.to_le_bytes());
        crc32c::crc32c_append(seed.checksum(&name), bytes)
    }

    pub(super) fn encode(&self, out: &mut [u8]) {
        write_key(&self.key, out);
        out[36..40].copy_from_slice(&self.num_tokens.to_le_bytes());
        out[40..48].copy_from_slice(&self.offset.to_le_bytes());
        out[48..52].copy_from_slice(&self.num_bytes.to_le_bytes());
        out[52..56].copy_from_slice(&self.checksum.to_le_bytes());
        out[56..Self::LEN].fill(0);
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let digest: [u8; 32] = std::array::from_fn(|i| bytes[i]);
        Self {
            key: Key { digest: Digest::from(digest), group: GroupId(u32_at(bytes, 32)) },
            num_tokens: u32_at(bytes, 36),
            offset: u64_at(bytes, 40),
            num_bytes: u32_at(bytes, 48),
            checksum: u32_at(bytes, 52),
        }
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
