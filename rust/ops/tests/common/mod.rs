//! Bytes to decode tests from.

/// As many bytes, the same for the same number: `SplitMix64`.
pub(crate) fn bytes(number: u64, count: usize) -> Vec<u8> {
    let mut state = number << 32;
    std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) as u8
    })
    .take(count)
    .collect()
}
