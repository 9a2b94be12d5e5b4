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

/// The longest distance of each bucket, rounded down to what lengths are multiples of. A division for each
/// would be the larger part of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distances([u32; NUM_BUCKETS]);

impl Distances {
    pub(super) fn new(alignment: u32) -> Self {
        Self(std::array::from_fn(|bucket| edge(bucket) / alignment * alignment))
    }

    /// By bucket, ascending; several may be alike.
    pub(super) fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_at_its_edge_and_the_last_one_never() {
        for bucket in 0..NUM_BUCKETS - 1 {
            assert_eq!(bucket_of(edge(bucket)), bucket);
            assert_eq!(bucket_of(edge(bucket) + 1), bucket + 1);
        }
        assert_eq!(bucket_of(u32::MAX), NUM_BUCKETS - 1);
    }
}
