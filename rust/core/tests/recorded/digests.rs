//! 32 bytes for each number that stands for a digest in a fixture.

use hybrid_blocks::Digest;

/// Numbers come in pairs that share their first 8 bytes, by which a table may sort: what decides
/// must be all 32.
pub(crate) fn digest(number: u32) -> Digest {
    let mut bytes = [0; 32];
    let pair = u64::from(number / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes[..8].copy_from_slice(&pair.to_le_bytes());
    bytes[28..].copy_from_slice(&number.to_le_bytes());
    Digest::from(bytes)
}

/// The number of a digest.
pub(crate) fn number(digest: &Digest) -> u32 {
    let bytes = digest.as_bytes();
    u32::from_le_bytes(std::array::from_fn(|at| bytes[28 + at]))
}
