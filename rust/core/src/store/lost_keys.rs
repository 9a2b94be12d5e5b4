//! [`LostKeys`]: which keys were evicted lately, so that a miss can be told from content never seen.

use crate::prefix_index::Key;

/// A table of one slot a block that keeps the first eight bytes of evicted digests. A later key may
/// overwrite an earlier one, so it forgets.
#[derive(Debug)]
pub(super) struct LostKeys {
    prefixes: Box<[u64]>,
}

impl LostKeys {
    /// A table of `num_slots`, at least 1.
    pub(super) fn new(num_slots: u32) -> Self {
        Self { prefixes: vec![0; num_slots as usize].into_boxed_slice() }
    }

    fn slot(&self, prefix: u64) -> usize {
        (prefix % self.prefixes.len() as u64) as usize
    }

    pub(super) fn insert(&mut self, key: &Key) {
        let prefix = key.digest.prefix();
        self.prefixes[self.slot(prefix)] = prefix;
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.prefixes)
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        let prefix = key.digest.prefix();
        self.prefixes[self.slot(prefix)] == prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GroupId;
    use hybrid_blocks_hash::Digest;

    #[test]
    fn keys_are_remembered_until_a_later_one_takes_their_slot() {
        let key = |first: u8| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&u64::from(first).to_le_bytes());
            Key { digest: Digest::from(bytes), group: GroupId(0) }
        };
        let mut lost = LostKeys::new(8);
        for first in [1, 2, 7] {
            lost.insert(&key(first));
        }
        assert_eq!([1, 2, 3, 7].map(|first| lost.contains(&key(first))), [true, true, false, true]);
        lost.insert(&key(10));
        assert_eq!([1, 2, 10].map(|first| lost.contains(&key(first))), [true, false, true]);
        assert_eq!(lost.memory_bytes(), 64);
    }
}
