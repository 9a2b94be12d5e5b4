//! Distances before the end of a prompt, in quarter octaves.

/// Buckets of distances.
pub(super) const NUM_BUCKETS: usize = 57;

/// The longest distance of a bucket: 0, 16, 19, 23, 27, 32, 38 and so on.
pub(super) const fn edge(bucket: usize) -> u32 {
    if bucket == 0 {
        return 0;
    }
    let octave = 1u32 << ((bucket - 1) / 4);
    octave * [16, 19, 23, 27][(bucket - 1) % 4]
}

/// The bucket of a distance.
pub(super) fn bucket_of(distance: u32) -> usize {
    (0..NUM_BUCKETS - 1).find(|&bucket| distance <= edge(bucket)).unwrap_or(NUM_BUCKETS - 1)
}
