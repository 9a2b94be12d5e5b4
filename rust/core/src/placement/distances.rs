//! Distances before the end of a prompt, in half octaves.

/// Buckets of distances.
pub(super) const NUM_BUCKETS: usize = 40;

/// The longest distance of a bucket: 0, 16, 22, 32, 45, 64 and so on.
pub(super) const fn edge(bucket: usize) -> u32 {
    if bucket == 0 {
        return 0;
    }
    let octave = 16u32 << ((bucket - 1) / 2);
    if bucket % 2 == 1 { octave } else { octave / 5 * 7 }
}

/// The bucket of a distance.
pub(super) fn bucket_of(distance: u32) -> usize {
    (0..NUM_BUCKETS - 1).find(|&bucket| distance <= edge(bucket)).unwrap_or(NUM_BUCKETS - 1)
}
