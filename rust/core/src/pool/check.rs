//! Integrity of pools: lists, states and counts, checked by walking everything.

use super::block_states::{ABSENT, BlockStates, EVICTABLE, HASHED, REFS};
use super::{QueuePool, SlabPool, Slabs};
use crate::ids::{BlockId, SlabId};

impl BlockStates {
    /// Checks states against the blocks that wait in lists and against the counts.
    fn check(
        &self,
        available: impl Iterator<Item = BlockId>,
        is_owned: impl Fn(u32) -> bool,
    ) -> Result<(), String> {
        let mut listed = vec![false; self.words.len()];
        for block in available {
            if std::mem::replace(&mut listed[block.index()], true) {
                return Err(format!("block {block} is listed twice"));
            }
        }
        let mut counts = [0u32; 3];
        for (block, &word) in self.words.iter().enumerate() {
            let owned = is_owned(block as u32);
            if owned == (word & ABSENT != 0) {
                return Err(format!("block {block} has state {word:#x}, owned {owned}"));
            }
            let live = word & REFS > 0;
            if listed[block] != (owned && !live) {
                let listed = listed[block];
                return Err(format!("block {block} has state {word:#x}, listed {listed}"));
            }
            if live && word & EVICTABLE != 0 {
                return Err(format!("live block {block} waits among the cached"));
            }
            if owned {
                counts[if live { 2 } else { usize::from(word & EVICTABLE != 0) }] += 1;
            }
        }
        let kept = [self.num_free, self.num_cached, self.num_live];
        if counts != kept {
            return Err(format!("free, cached, live are {counts:?}, kept as {kept:?}"));
        }
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
                if !is_live && (word & EVICTABLE != 0) != (word & HASHED != 0) {
                    return Err(format!("ownerless block {block} has state {word:#x}"));
                }
                live += u32::from(is_live);
                free += u32::from(!is_live && word & EVICTABLE == 0);
            }
            if (slabs.num_live_in(slab), slabs.num_free_in(slab)) != (live, free) {
                return Err(format!("slab {slab} has {live} live and {free} free blocks"));
            }
        }
        slabs.check()
    }
}

impl Slabs {
    fn check(&self) -> Result<(), String> {
        self.check_buckets()?;
        let mut idle: Vec<SlabId> = self.idle().collect();
        let mut slack = 0;
        for slab in self.owned() {
            let live = self.num_live_in(slab);
            if live > 0 {
                slack += u64::from(self.blocks_per_slab() - live);
            } else {
                let Some(at) = idle.iter().position(|&other| other == slab) else {
                    return Err(format!("slab {slab} has no live block but is not idle"));
                };
                idle.swap_remove(at);
            }
        }
        let num_owned = self.owned().count();
        if num_owned != self.num_owned as usize {
            return Err(format!("{} slabs owned, counted {num_owned}", self.num_owned));
        }
        if !idle.is_empty() || slack != self.slack() {
            return Err(format!("idle left over {idle:?}, slack {} is {slack}", self.slack()));
        }
        Ok(())
    }

    /// Checks that every slab with free blocks waits among those with as many, and no other does.
    fn check_buckets(&self) -> Result<(), String> {
        let mut seen = vec![false; self.free.len()];
        for free in 1..=self.blocks_per_slab() {
            let bit = self.occupied[(free as usize - 1) / 64] >> ((free - 1) % 64) & 1 == 1;
            if bit != self.by_free.front(self.bucket(free)).is_some() {
                return Err(format!("bucket of {free} free blocks: bit {bit} is wrong"));
            }
            for slab in self.by_free.iter(self.bucket(free)) {
                if self.free[slab as usize] != free {
                    return Err(format!("slab {slab} waits among those with {free} free blocks"));
                }
                seen[slab as usize] = true;
            }
        }
        match self.owned().find(|slab| (self.free[slab.index()] > 0) != seen[slab.index()]) {
            Some(slab) => {
                Err(format!("slab {slab} with free blocks waits nowhere, or the reverse"))
            }
            None => Ok(()),
        }
    }
}
