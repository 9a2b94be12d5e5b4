//! Keys for benchmarks.

use hybrid_blocks::Digest;

/// Tokens a digest stands for.
pub(crate) const BLOCK_SIZE: u32 = 16;

/// Digests without hashing, spread as those of a hash function are (splitmix64).
pub(crate) fn digests(request: u64, num_tokens: u32) -> Vec<Digest> {
    let spread = |number: u64| {
        let mut z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..u64::from(num_tokens / BLOCK_SIZE))
        .map(|block| {
            let mut bytes = [0; 32];
            for (word, bytes) in (0..).zip(bytes.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&spread(request << 32 | block << 2 | word).to_le_bytes());
            }
            bytes.into()
        })
        .collect()
}
