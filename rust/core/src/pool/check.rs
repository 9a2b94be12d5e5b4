//! Integrity of pools: lists, states and counts, checked by walking everything.

use super::block_states::{ABSENT, BlockStates, EVICTABLE, HASHED, REFS};
use super::{QueuePool, SlabPool, Slabs};
use crate::error::ensure;
use crate::ids::BlockId;

impl BlockStates {
    /// Checks states against the blocks that wait in lists and against the counts.
    fn check(
        &self,
        available: impl Iterator<Item = BlockId>,
        is_owned: impl Fn(u32) -> bool,
    ) -> Result<(), String> {
        let mut listed = vec![false; self.words.len()];
        for block in available {
            let twice = std::mem::replace(&mut listed[block.index()], true);
            ensure!(!twice, "block {block} is listed twice");
        }
        let mut counts = [0u32; 3];
        for (block, (&word, listed)) in (0..).zip(self.words.iter().zip(listed)) {
            let (owned, live, evictable) =
                (is_owned(block), word & REFS > 0, word & EVICTABLE != 0);
            ensure!(
                (if owned { word & ABSENT == 0 } else { word == ABSENT })
                    && listed == (owned && !live)
                    && !(live && evictable),
                "block {block} has state {word:#x}, owned {owned}, listed {listed}"
            );
            if owned {
                counts[if live { 2 } else { usize::from(evictable) }] += 1;
            }
        }
        let kept = [self.num_free, self.num_cached, self.num_live];
        ensure!(counts == kept, "free, cached, live are {counts:?}, kept as {kept:?}");
        Ok(())
    }
}

impl QueuePool {
    /// Walks everything; an error describes the first contradiction.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.blocks.check(self.iter_available(), |block| block != 0)
    }
}

impl SlabPool {
    /// Walks everything; an error describes the first contradiction.
    pub(crate) fn check(&self) -> Result<(), String> {
        let slabs = &self.slabs;
        self.blocks.check(self.iter_available(), |block| slabs.owns(slabs.slab_of(block)))?;
        for slab in slabs.owned() {
            let (mut live, mut free) = (0, 0);
            for block in slabs.blocks_of(slab) {
                let word = self.blocks.words[block as usize];
                let is_live = word & REFS > 0;
                ensure!(
                    is_live || (word & EVICTABLE != 0) == (word & HASHED != 0),
                    "ownerless block {block} has state {word:#x}"
                );
                live += u32::from(is_live);
                free += u32::from(!is_live && word & EVICTABLE == 0);
            }
            let kept = (slabs.num_live_in(slab), slabs.num_free_in(slab));
            ensure!(kept == (live, free), "slab {slab} has {live} live and {free} free blocks");
        }
        let cached = self.links.iter(self.cached_list());
        if let Some(block) = self.priorities.first_lost(cached) {
            return Err(format!("cached block {block} waits nowhere with its priority"));
        }
        slabs.check()
    }
}

impl Slabs {
    fn check(&self) -> Result<(), String> {
        let (mut idle, mut slack) = (0, 0);
        for slab in self.idle.iter() {
            let live = self.num_live_in(slab);
            ensure!(self.owns(slab) && live == 0, "idle slab {slab} has {live} live blocks");
            idle += 1;
        }
        for live in self.live().map(|slab| self.num_live_in(slab)) {
            slack += u64::from(self.blocks_per_slab() - live);
        }
        let found = (self.owned().count(), self.owned().count() - self.live().count(), slack);
        let kept = (self.num_owned as usize, self.num_idle() as usize, self.slack());
        ensure!(found == kept, "slabs owned, idle and slack are {found:?}, kept as {kept:?}");
        ensure!(idle == found.1, "{idle} slabs are idle, not {}", found.1);
        ensure!(self.idle.is_sound(), "the order of idle slabs is not that of their places");
        self.check_buckets()
    }

    /// Checks that every slab with free blocks waits among those with as many, and no other does.
    fn check_buckets(&self) -> Result<(), String> {
        let mut num_listed = 0;
        for free in 1..=self.blocks_per_slab() {
            let is_marked = self.occupied.contains(free as usize);
            let mut waiting = self.by_free.iter(self.bucket(free)).peekable();
            ensure!(
                is_marked == waiting.peek().is_some(),
                "bucket of {free} free blocks is marked {is_marked}"
            );
            for slab in waiting {
                let actual = self.free[slab as usize];
                ensure!(actual == free, "slab {slab} with {actual} free blocks waits among {free}");
                num_listed += 1;
            }
        }
        let with_free = self.owned().filter(|&slab| self.num_free_in(slab) > 0).count();
        ensure!(
            num_listed == with_free,
            "{num_listed} slabs with free blocks wait, not {with_free}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SlabId;

    fn ids(blocks: &[u32]) -> impl Iterator<Item = BlockId> + Clone {
        blocks.iter().copied().map(BlockId)
    }

    /// Blocks 1 to 8: 1 and 2 are live, 3 and 4 cached, the others free.
    fn queue_pool() -> QueuePool {
        let mut pool = QueuePool::new(9).unwrap();
        pool.take_free(4, &mut Vec::new());
        ids(&[2, 3, 4]).for_each(|block| pool.blocks.set_hashed(block));
        pool.free(ids(&[3, 4])).unwrap();
        pool
    }

    /// Slabs of 4 blocks: in slab 1, two blocks are live, one is cached and one free; in slab 2, one
    /// is cached and three are free. Slab 3 is not owned.
    fn slab_pool() -> SlabPool {
        let mut pool = SlabPool::new(4, 4).unwrap();
        pool.adopt(SlabId(1), 3, &mut Vec::new());
        pool.adopt(SlabId(2), 1, &mut Vec::new());
        ids(&[5, 6, 8]).for_each(|block| pool.blocks.set_hashed(block));
        pool.free(ids(&[6, 8])).unwrap();
        pool
    }

    /// Every single wrong mark or count of the states is noticed.
    fn check_states<P>(
        new: fn() -> P,
        states: fn(&mut P) -> &mut BlockStates,
        check: fn(&P) -> bool,
    ) {
        assert!(check(&new()));
        for block in 0..states(&mut new()).words.len() {
            for change in [EVICTABLE, ABSENT, 1] {
                let mut pool = new();
                states(&mut pool).words[block] ^= change;
                assert!(!check(&pool), "block {block}, {change:#x}");
            }
        }
        let counts: [fn(&mut BlockStates) -> &mut u32; 3] =
            [|it| &mut it.num_free, |it| &mut it.num_cached, |it| &mut it.num_live];
        for count in counts {
            let mut pool = new();
            *count(states(&mut pool)) += 1;
            assert!(!check(&pool));
        }
    }

    #[test]
    fn a_wrong_state_is_noticed() {
        check_states(queue_pool, |pool| &mut pool.blocks, |pool| pool.check().is_ok());
        check_states(slab_pool, |pool| &mut pool.blocks, |pool| pool.check().is_ok());
    }

    #[test]
    fn a_block_that_is_listed_twice_or_hashed_without_being_cached_is_noticed() {
        let mut pool = queue_pool();
        pool.links.push_back(pool.links.list(0), 5);
        assert!(pool.check().unwrap_err().contains("block 5 is listed twice"));
        for block in [6, 7, 8, 9] {
            let mut pool = slab_pool();
            pool.blocks.words[block] ^= HASHED;
            assert!(pool.check().is_err(), "block {block}");
        }
    }

    #[test]
    fn a_wrong_count_of_a_slab_is_noticed() {
        let changes: [fn(&mut Slabs); 9] = [
            |slabs| slabs.free[1] += 1,
            |slabs| slabs.free[2] -= 1,
            |slabs| slabs.live[1] += 1,
            |slabs| slabs.live[1] = 0,
            |slabs| slabs.live[2] = 1,
            |slabs| slabs.num_owned += 1,
            |slabs| slabs.idle.num += 1,
            |slabs| slabs.slack += 1,
            |slabs| slabs.idle.links.remove(2),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut slabs = slab_pool().slabs;
            assert_eq!(slabs.check(), Ok(()));
            change(&mut slabs);
            assert!(slabs.check().is_err(), "change {number}");
        }
    }

    #[test]
    fn a_slab_that_waits_among_others_is_noticed() {
        let changes: [fn(&mut Slabs); 6] = [
            |slabs| slabs.occupied.set(1, false),
            |slabs| slabs.occupied.set(2, true),
            |slabs| slabs.by_free.remove(1),
            |slabs| slabs.by_free.push_back(slabs.bucket(1), 2),
            |slabs| slabs.by_free.push_back(slabs.bucket(4), 3),
            |slabs| slabs.free[2] = 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut slabs = slab_pool().slabs;
            change(&mut slabs);
            assert!(slabs.check_buckets().is_err(), "change {number}");
        }
    }
}
