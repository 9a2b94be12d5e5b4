//! A pool: who owns which block, and which ownerless block goes next.

use crate::error::Error;
use crate::ids::{BlockId, SlabId};
use crate::links::{Links, List};
use crate::slabs::Slabs;
use crate::worth_queue::WorthQueue;

/// The block's content is in the prefix index.
const KEYED: u32 = 1 << 31;
/// The block waits in the list of cached blocks.
const COLD: u32 = 1 << 30;
/// The block is the null block or lies in a slab of another pool.
const ABSENT: u32 = 1 << 29;
const REFS: u32 = ABSENT - 1;

/// Blocks of one size: reference counts, free blocks, cached blocks in LRU order.
///
/// A block is *live* (it has owners), *free* (nobody's, nothing in it worth keeping) or *cached*
/// (nobody's, but its content can be hit). An allocation takes free blocks first and then the
/// coldest cached one.
///
/// A pool that owns its whole arena keeps the free blocks in one queue: lowest ids first at the
/// start, then blocks come back at the front in the order in which they are freed. Followed by the
/// cached ones this is exactly vLLM's free queue. A pool that shares an arena keeps them by slab.
///
/// Struct of arrays, 12 bytes a block: 4 for state and count, 8 for links.
#[derive(Debug)]
pub struct Pool {
    state: Box<[u32]>,
    links: Links,
    cached: List,
    slabs: Option<Slabs>,
    num_free: u32,
    num_cached: u32,
    num_live: u32,
    /// What each block's content is worth keeping; shared pools only.
    worth: Vec<u64>,
    /// Cached blocks by worth, where that is not the order in which they lost their owners.
    by_worth: Option<WorthQueue>,
    now: u64,
    zeroed: Vec<u32>,
    emptied: Vec<SlabId>,
}

impl Pool {
    /// A pool that owns blocks `1..num_blocks` for good; block 0 is the null block.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless `1 <= num_blocks <= 2^29`.
    pub fn fixed(num_blocks: u32) -> Result<Self, Error> {
        let mut pool = Self::with_lists(num_blocks, 2, None, 0)?;
        pool.state[0] = ABSENT;
        pool.links.push_front_all(pool.free_queue(), 1..num_blocks);
        pool.num_free = num_blocks - 1;
        Ok(pool)
    }

    /// A pool over an arena of `num_slabs` that owns no slab yet.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless `num_slabs * blocks_per_slab` lies in `1..=2^29`.
    pub fn shared(num_slabs: u32, blocks_per_slab: u32) -> Result<Self, Error> {
        let num_blocks = num_slabs.checked_mul(blocks_per_slab).unwrap_or(0);
        let slabs = Slabs::new(num_slabs, blocks_per_slab.max(1));
        let mut pool = Self::with_lists(num_blocks, 1 + num_slabs, Some(slabs), ABSENT)?;
        pool.worth = vec![0; num_blocks as usize];
        Ok(pool)
    }

    fn with_lists(
        num_blocks: u32,
        num_lists: u32,
        slabs: Option<Slabs>,
        state: u32,
    ) -> Result<Self, Error> {
        if num_blocks == 0 || num_blocks > ABSENT {
            return Err(Error::InvalidConfig(format!(
                "a pool holds 1 to {ABSENT} blocks, not {num_blocks}; give it more or fewer slabs"
            )));
        }
        let links = Links::new(num_blocks, num_lists);
        Ok(Self {
            state: vec![state; num_blocks as usize].into_boxed_slice(),
            cached: links.list(0),
            links,
            slabs,
            num_free: 0,
            num_cached: 0,
            num_live: 0,
            worth: Vec::new(),
            by_worth: None,
            now: 0,
            zeroed: Vec::new(),
            emptied: Vec::new(),
        })
    }

    /// The queue of a fixed pool.
    fn free_queue(&self) -> List {
        self.links.list(1)
    }

    fn free_list_of(&self, slab: SlabId) -> List {
        self.links.list(1 + slab.0)
    }

    /// Ids below this are valid, the null block's among them.
    #[must_use]
    pub fn num_ids(&self) -> u32 {
        self.state.len() as u32
    }

    /// Blocks without owner, cached ones included.
    #[inline]
    #[must_use]
    pub fn num_available(&self) -> u32 {
        self.num_free + self.num_cached
    }

    /// Blocks without owner and content.
    #[inline]
    #[must_use]
    pub fn num_free(&self) -> u32 {
        self.num_free
    }

    /// Blocks without owner that can still be hit.
    #[inline]
    #[must_use]
    pub fn num_cached(&self) -> u32 {
        self.num_cached
    }

    /// Blocks with owners.
    #[inline]
    #[must_use]
    pub fn num_live(&self) -> u32 {
        self.num_live
    }

    /// Owners of a block; 0 for the null block and for foreign blocks.
    #[inline]
    #[must_use]
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.state.get(block.index()).map_or(0, |state| state & REFS)
    }

    /// Whether the block's content is in the prefix index.
    #[inline]
    #[must_use]
    pub fn is_keyed(&self, block: BlockId) -> bool {
        self.state[block.index()] & KEYED != 0
    }

    pub(crate) fn slabs(&self) -> Option<&Slabs> {
        self.slabs.as_ref()
    }

    /// Evict by worth instead of by age. Shared pools only, before the first block is cached.
    pub(crate) fn order_by_worth(&mut self) {
        self.by_worth = Some(WorthQueue::default());
    }

    /// What a cached block is worth: by age, when it lost its last owner.
    pub(crate) fn worth(&self, block: BlockId) -> u64 {
        self.worth.get(block.index()).copied().unwrap_or(0)
    }

    /// Say what a block's content is worth from the next time it loses its last owner. Only matters
    /// where blocks are ordered by worth.
    pub(crate) fn set_worth(&mut self, block: BlockId, worth: u64) {
        if self.by_worth.is_some() {
            self.worth[block.index()] = worth;
        }
    }

    /// Treat a cached block as if it had just lost its last owner.
    pub(crate) fn refresh(&mut self, block: BlockId) {
        if self.state[block.index()] & COLD == 0 || self.slabs.is_none() {
            return;
        }
        self.links.remove(block.0);
        self.links.push_back(self.cached, block.0);
        self.note_cached(block.0);
        let worth = self.worth[block.index()];
        if let Some(slabs) = &mut self.slabs {
            let slab = slabs.slab_of(block.0);
            slabs.refresh(slab, worth);
        }
    }

    /// Put keyed blocks of one slab that lost their last owner among the cached. Says what the best
    /// of them is worth.
    fn cache(&mut self, blocks: &[u32]) -> u64 {
        self.links.push_back_all(self.cached, blocks.iter().copied());
        for &block in blocks {
            self.state[block as usize] |= COLD;
        }
        if self.by_worth.is_none() {
            for &block in blocks {
                self.worth[block as usize] = self.now;
            }
            return self.now;
        }
        blocks.iter().fold(0, |most, &block| {
            self.note_cached(block);
            most.max(self.worth[block as usize])
        })
    }

    /// Let a cached block go before all others.
    pub(crate) fn demote(&mut self, block: BlockId) {
        if self.state[block.index()] & COLD == 0 || self.slabs.is_none() {
            return;
        }
        self.links.remove(block.0);
        self.links.push_front(self.cached, block.0);
        self.worth[block.index()] = 0;
        if let Some(queue) = &mut self.by_worth {
            queue.push(0, block.0);
        }
        if let Some(slabs) = &mut self.slabs {
            let slab = slabs.slab_of(block.0);
            let cached = slabs.blocks_of(slab).map(|block| block as usize);
            let cached = cached.filter(|&block| self.state[block] & COLD != 0);
            slabs.demote(slab, cached.map(|block| self.worth[block]).max().unwrap_or(0));
        }
    }

    /// Put a block that has just become cached into its place among the others.
    fn note_cached(&mut self, block: u32) {
        match &mut self.by_worth {
            Some(queue) => queue.push(self.worth[block as usize], block),
            None => self.worth[block as usize] = self.now,
        }
    }

    /// Let the pool know the time, for the ages of what it caches.
    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// The cached block that goes first.
    pub(crate) fn coldest_cached(&mut self) -> Option<BlockId> {
        let Some(queue) = &mut self.by_worth else {
            return self.links.front(self.cached).map(BlockId);
        };
        let (state, worth) = (&self.state, &self.worth);
        queue
            .peek(|block, at| state[block as usize] & COLD != 0 && worth[block as usize] == at)
            .map(BlockId)
    }

    /// Free blocks, then cached ones, next to go first.
    pub fn iter_available(&self) -> impl Iterator<Item = BlockId> + '_ {
        let free = self.slabs.is_none().then(|| self.links.iter(self.free_queue()));
        let by_slab = self.slabs.iter().flat_map(|slabs| {
            (0..self.state.len() as u32 / slabs.blocks_of(SlabId(0)).end)
                .map(SlabId)
                .filter(|&slab| slabs.owns(slab))
                .flat_map(|slab| self.links.iter(self.free_list_of(slab)))
        });
        free.into_iter().flatten().chain(by_slab).chain(self.links.iter(self.cached)).map(BlockId)
    }

    /// Whether the block has no owner and can be handed out.
    #[inline]
    #[must_use]
    pub fn is_available(&self, block: BlockId) -> bool {
        self.state.get(block.index()).is_some_and(|state| state & (ABSENT | REFS) == 0)
    }

    /// In a fixed pool, the available block that goes right after `block`, or the very first.
    #[must_use]
    pub fn next_available(&self, block: Option<BlockId>) -> Option<BlockId> {
        let in_free = block.is_none_or(|block| self.state[block.index()] & COLD == 0);
        let next = match block {
            Some(block) => self.links.after(block.0),
            None => self.links.front(self.free_queue()),
        };
        next.or_else(|| self.links.front(self.cached).filter(|_| in_free)).map(BlockId)
    }

    /// In a fixed pool, the available block that goes right before `block`, or the very last.
    #[must_use]
    pub fn previous_available(&self, block: Option<BlockId>) -> Option<BlockId> {
        let in_cached = block.is_none_or(|block| self.state[block.index()] & COLD != 0);
        let previous = match block {
            Some(block) => self.links.before(block.0),
            None => self.links.back(self.cached),
        };
        previous.or_else(|| self.links.back(self.free_queue()).filter(|_| in_cached)).map(BlockId)
    }

    /// Take a free block: from slab `near` if it has one, else from the fullest slab. A fixed pool
    /// takes the first of its queue.
    #[inline]
    pub(crate) fn take_free(&mut self, near: Option<SlabId>) -> Option<BlockId> {
        let block = match &mut self.slabs {
            None => self.links.pop_front(self.links.list(1))?,
            Some(slabs) => {
                let slab = near
                    .filter(|&slab| slabs.owns(slab) && slabs.num_free_in(slab) > 0)
                    .or_else(|| slabs.fullest_with_room())?;
                slabs.on_live(slab, 1, 1);
                self.links.pop_front(self.links.list(1 + slab.0))?
            }
        };
        debug_assert_eq!(self.state[block as usize], 0);
        self.num_free -= 1;
        self.own(&[BlockId(block)]);
        Some(BlockId(block))
    }

    /// Append up to `most` blocks from the front of a fixed pool's queue to `out`. Says how many.
    #[inline]
    pub(crate) fn take_free_front(&mut self, most: u64, out: &mut Vec<BlockId>) -> u32 {
        let count = most.min(u64::from(self.num_free)) as u32;
        let queue = self.free_queue();
        let start = out.len();
        self.links.pop_front_all(queue, count, out, BlockId);
        self.num_free -= count;
        self.own(&out[start..]);
        count
    }

    /// Append up to `most` free blocks of one slab to `out`, chosen as by [`Pool::take_free`]. Says
    /// how many. For shared pools.
    pub(crate) fn take_free_run(
        &mut self,
        near: Option<SlabId>,
        most: u64,
        out: &mut Vec<BlockId>,
    ) -> u32 {
        let Some(slabs) = &mut self.slabs else { return 0 };
        let Some(slab) = near
            .filter(|&slab| slabs.owns(slab) && slabs.num_free_in(slab) > 0)
            .or_else(|| slabs.fullest_with_room())
        else {
            return 0;
        };
        let count = most.min(u64::from(slabs.num_free_in(slab))) as u32;
        slabs.on_live(slab, count, count);
        let start = out.len();
        self.links.pop_front_all(self.links.list(1 + slab.0), count, out, BlockId);
        self.num_free -= count;
        self.own(&out[start..]);
        count
    }

    /// Give free blocks that have left their list to a first owner.
    #[inline]
    fn own(&mut self, blocks: &[BlockId]) {
        // Not while walking the list: large arrays lie at the same offset in their pages, where a
        // store to one holds up the next load from the other.
        for block in blocks {
            self.state[block.index()] = 1;
        }
        if self.by_worth.is_some() {
            for block in blocks {
                self.worth[block.index()] = 0;
            }
        }
        self.num_live += blocks.len() as u32;
    }

    /// As [`Pool::take_free`], but only from slabs that hold live blocks and are `allowed`.
    pub(crate) fn take_free_from_live_slab_if(
        &mut self,
        allowed: impl Fn(SlabId) -> bool,
    ) -> Option<BlockId> {
        let slab = self.slabs.as_ref()?.fullest_live_with_room(allowed)?;
        self.take_free(Some(slab))
    }

    /// Cached blocks in slabs that hold live blocks and are `allowed`, coldest first, at most `count`.
    pub(crate) fn coldest_cached_in_live_slabs_if(
        &self,
        count: usize,
        allowed: impl Fn(SlabId) -> bool,
    ) -> Vec<BlockId> {
        let Some(slabs) = self.slabs.as_ref() else { return Vec::new() };
        let usable = self.links.iter(self.cached).filter(|&block| {
            let slab = slabs.slab_of(block);
            slabs.num_live_in(slab) > 0 && allowed(slab)
        });
        if self.by_worth.is_none() {
            return usable.take(count).map(BlockId).collect();
        }
        let mut usable: Vec<_> = usable.map(BlockId).collect();
        usable.sort_by_key(|block| self.worth[block.index()]);
        usable.truncate(count);
        usable
    }

    /// The live blocks of a slab.
    pub(crate) fn live_in(&self, slab: SlabId) -> Vec<BlockId> {
        let blocks = self.slabs.as_ref().map_or(0..0, |slabs| slabs.blocks_of(slab));
        blocks.map(BlockId).filter(|&block| self.ref_count(block) > 0).collect()
    }

    /// Give the owners of `src`, and its mark as keyed, to `dst`, which was just taken. `src` becomes
    /// free.
    pub(crate) fn move_owners(&mut self, src: BlockId, dst: BlockId) {
        self.state[dst.index()] = std::mem::replace(&mut self.state[src.index()], 0);
        self.num_live -= 1;
        self.push_free(src.0);
        if let Some(slab) = self.slabs.as_ref().map(|slabs| slabs.slab_of(src.0)) {
            self.on_dead(slab, 1, 1, 0);
        }
    }

    /// The cached blocks of a slab.
    pub(crate) fn cached_in(&self, slab: SlabId) -> Vec<BlockId> {
        let blocks = self.slabs.as_ref().map_or(0..0, |slabs| slabs.blocks_of(slab));
        blocks.filter(|&block| self.state[block as usize] & COLD != 0).map(BlockId).collect()
    }

    /// Take the coldest cached block. Its content is lost: its keys, if any, are the caller's to
    /// drop and the block is no longer marked as keyed.
    #[inline]
    pub(crate) fn take_coldest(&mut self) -> Option<BlockId> {
        let block = BlockId(self.links.front(self.cached)?);
        self.take_cached(block);
        Some(block)
    }

    /// Take a given cached block for new content; says whether it was keyed.
    pub(crate) fn take_cached(&mut self, block: BlockId) -> bool {
        self.links.remove(block.0);
        let keyed = self.state[block.index()] & KEYED != 0;
        self.set_worth(block, 0);
        self.state[block.index()] = 1;
        self.num_cached -= 1;
        self.num_live += 1;
        if let Some(slabs) = &mut self.slabs {
            slabs.on_live(slabs.slab_of(block.0), 1, 0);
        }
        keyed
    }

    /// Add an owner. A cached block leaves the eviction order.
    ///
    /// # Errors
    /// [`Error::ForeignBlock`] for an id that this pool does not hold.
    #[inline]
    pub fn touch(&mut self, block: BlockId) -> Result<(), Error> {
        let state = self.state.get(block.index()).copied().unwrap_or(ABSENT);
        if state & ABSENT != 0 {
            return Err(Error::ForeignBlock { block, num_blocks: self.num_ids() });
        }
        if state & REFS == 0 {
            self.links.remove(block.0);
            let was_free = state & COLD == 0;
            if was_free {
                self.num_free -= 1;
            } else {
                self.num_cached -= 1;
            }
            self.num_live += 1;
            if let Some(slabs) = &mut self.slabs {
                slabs.on_live(slabs.slab_of(block.0), 1, u32::from(was_free));
            }
        }
        self.state[block.index()] = (state & !COLD) + 1;
        Ok(())
    }

    /// Undo the latest [`Pool::touch`] of a live or cached block that is not yet undone, exactly.
    pub(crate) fn undo_touch(&mut self, block: BlockId) {
        let state = &mut self.state[block.index()];
        *state -= 1;
        if *state & REFS == 0 {
            *state |= COLD;
            self.links.restore(block.0);
            self.num_cached += 1;
            self.num_live -= 1;
            if let Some(slabs) = &mut self.slabs {
                slabs.undo_live(slabs.slab_of(block.0));
            }
            if let Some(queue) = &mut self.by_worth {
                queue.push(self.worth[block.index()], block.0);
            }
        }
    }

    /// Take one owner from each block. Blocks without owner and content go to the front of the
    /// free ones, cached blocks to the warm end, both in the order given.
    ///
    /// # Errors
    /// [`Error::NotLive`] for a block that has no (further) owner; then nothing was freed.
    pub fn free(&mut self, blocks: impl Iterator<Item = BlockId> + Clone) -> Result<(), Error> {
        if self.slabs.is_none() && self.free_sole(blocks.clone()) {
            return Ok(());
        }
        // Most blocks have one owner. A run of them names each block once.
        let (mut num_sole, mut common, mut all) = (0, KEYED, true);
        for block in blocks.clone() {
            match self.state.get_mut(block.index()) {
                Some(state) if *state & REFS == 1 => {
                    *state -= 1;
                    common &= *state;
                    num_sole += 1;
                }
                _ => {
                    all = false;
                    break;
                }
            }
        }
        self.zeroed.clear();
        if all {
            self.zeroed.extend(blocks.map(|block| block.0));
            self.put_back(common & KEYED != 0);
            return Ok(());
        }
        self.zeroed.extend(blocks.clone().take(num_sole).map(|block| block.0));
        for (done, block) in blocks.clone().enumerate().skip(num_sole) {
            match self.state.get_mut(block.index()) {
                Some(state) if *state & REFS > 0 => {
                    *state -= 1;
                    if *state & REFS == 0 {
                        self.zeroed.push(block.0);
                    }
                }
                _ => {
                    for block in blocks.take(done) {
                        self.state[block.index()] += 1;
                    }
                    return Err(Error::NotLive { block });
                }
            }
        }
        self.put_back(false);
        Ok(())
    }

    /// Free blocks of a fixed pool that all have one owner and no content worth keeping, in one pass:
    /// they join the queue while they are checked. Unless all are so, nothing changes.
    #[inline]
    fn free_sole(&mut self, blocks: impl Iterator<Item = BlockId> + Clone) -> bool {
        let mut num_sole = 0;
        let state = &mut self.state;
        let is_sole = |block: u32| match state.get_mut(block as usize) {
            Some(state) if *state == 1 => {
                *state = 0;
                num_sole += 1;
                true
            }
            _ => false,
        };
        let queue = self.links.list(1);
        if !self.links.push_front_if(queue, blocks.clone().map(|block| block.0), is_sole) {
            blocks.take(num_sole).for_each(|block| self.state[block.index()] = 1);
            return false;
        }
        self.num_live -= num_sole as u32;
        self.num_free += num_sole as u32;
        true
    }

    /// Put the blocks that lost their last owner where they wait; `all_keyed`, if that is known.
    fn put_back(&mut self, all_keyed: bool) {
        self.num_live -= self.zeroed.len() as u32;
        let zeroed = std::mem::take(&mut self.zeroed);
        if self.slabs.is_some() {
            self.put_by_slab(&zeroed, all_keyed);
        } else {
            self.put_in_queue(&zeroed);
        }
        self.zeroed = zeroed;
    }

    /// Put blocks that lost their last owner into the queue.
    fn put_in_queue(&mut self, blocks: &[u32]) {
        let mut num_keyed = 0;
        for &block in blocks {
            if self.state[block as usize] & KEYED != 0 {
                self.state[block as usize] |= COLD;
                self.links.push_back(self.cached, block);
                num_keyed += 1;
            }
        }
        self.num_cached += num_keyed;
        self.num_free += blocks.len() as u32 - num_keyed;
        let (queue, state) = (self.free_queue(), &self.state);
        let is_free = |block: &u32| num_keyed == 0 || state[*block as usize] & KEYED == 0;
        self.links.push_front_all(queue, blocks.iter().copied().filter(is_free));
    }

    /// Put blocks that lost their last owner into their slabs, one run of the same slab at a time.
    fn put_by_slab(&mut self, mut blocks: &[u32], all_keyed: bool) {
        while let (Some(&first), Some(slabs)) = (blocks.first(), &self.slabs) {
            let slab = slabs.slab_of(first);
            let range = slabs.blocks_of(slab);
            let len = blocks.iter().take_while(|block| range.contains(block)).count();
            let (run, rest) = blocks.split_at(len);
            let is_keyed = |block: &&u32| self.state[**block as usize] & KEYED != 0;
            let num_cached = if all_keyed { len } else { run.iter().filter(is_keyed).count() };
            let num_free = (len - num_cached) as u32;
            if num_free > 0 {
                let free = run.iter().rev().filter(|block| !is_keyed(block));
                self.links.push_front_all(self.links.list(1 + slab.0), free.copied());
            }
            let most_worth = if num_free == 0 {
                self.cache(run)
            } else {
                run.chunks(1).fold(0, |most, one| {
                    let is_keyed = self.state[one[0] as usize] & KEYED != 0;
                    most.max(if is_keyed { self.cache(one) } else { 0 })
                })
            };
            self.num_free += num_free;
            self.num_cached += len as u32 - num_free;
            self.on_dead(slab, len as u32, num_free, most_worth);
            blocks = rest;
        }
    }

    /// As [`Pool::free`], but every block ends at the warm end, keyed or not: its content stays
    /// readable until the block is handed out again.
    ///
    /// # Errors
    /// As [`Pool::free`]; [`Error::InvalidConfig`] on a pool that shares its arena.
    pub fn free_warm(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        if self.slabs.is_some() {
            return Err(Error::InvalidConfig("a shared pool keeps keyed blocks only".to_owned()));
        }
        for block in blocks.clone() {
            if self.ref_count(block) == 0 {
                return Err(Error::NotLive { block });
            }
        }
        for block in blocks {
            let state = &mut self.state[block.index()];
            if *state & REFS == 0 {
                continue;
            }
            *state -= 1;
            if *state & REFS == 0 {
                *state |= COLD;
                self.links.push_back(self.cached, block.0);
                self.num_cached += 1;
                self.num_live -= 1;
            }
        }
        Ok(())
    }

    fn push_free(&mut self, block: u32) {
        if let Some(slabs) = &self.slabs {
            self.links.push_front(self.links.list(1 + slabs.slab_of(block).0), block);
            self.num_free += 1;
        }
    }

    fn on_dead(&mut self, slab: SlabId, count: u32, num_free: u32, worth: u64) {
        if let Some(slabs) = &mut self.slabs {
            slabs.on_dead(slab, count, num_free, worth);
            if slabs.is_all_free(slab) {
                self.emptied.push(slab);
            } else if self.by_worth.is_some() && slabs.num_live_in(slab) == 0 {
                // What was worth most may be gone since.
                let cached = slabs.blocks_of(slab).map(|block| block as usize);
                let cached = cached.filter(|&block| self.state[block] & COLD != 0);
                slabs.set_worth(slab, cached.map(|block| self.worth[block]).max().unwrap_or(0));
            }
        }
    }

    /// Have what is known of a block fetched.
    #[inline]
    pub(crate) fn read_ahead(&self, block: BlockId) -> u32 {
        self.state[block.index()]
    }

    /// Mark a block as keyed.
    pub(crate) fn set_keyed(&mut self, block: BlockId) {
        self.state[block.index()] |= KEYED;
    }

    /// Note that a block is in no index any more. An ownerless block of a fixed pool keeps its
    /// place in the eviction order, as in vLLM; one of a shared pool becomes free.
    pub(crate) fn clear_keyed(&mut self, block: BlockId) {
        let state = &mut self.state[block.index()];
        *state &= !KEYED;
        if *state & COLD == 0 || self.slabs.is_none() {
            return;
        }
        *state &= !COLD;
        self.links.remove(block.0);
        self.num_cached -= 1;
        self.push_free(block.0);
        if let Some(slabs) = &mut self.slabs {
            let slab = slabs.slab_of(block.0);
            slabs.on_content_lost(slab);
            if slabs.is_all_free(slab) {
                self.emptied.push(slab);
            }
        }
    }

    /// Own a slab and append up to `most` of its blocks to `out`, the lowest first; the others become
    /// free. Says how many.
    pub(crate) fn adopt(&mut self, slab: SlabId, most: u64, out: &mut Vec<BlockId>) -> u32 {
        let Some(slabs) = &mut self.slabs else { return 0 };
        let blocks = slabs.blocks_of(slab);
        let count = most.min(blocks.len() as u64) as u32;
        slabs.adopt(slab);
        slabs.on_live(slab, count, count);
        self.state[blocks.start as usize..blocks.end as usize].fill(0);
        let list = self.free_list_of(slab);
        self.links.clear(list);
        let (taken, free) = (blocks.start..blocks.start + count, blocks.start + count..blocks.end);
        self.num_free += free.len() as u32;
        self.links.push_front_all(list, free);
        let start = out.len();
        out.extend(taken.map(BlockId));
        self.own(&out[start..]);
        count
    }

    /// Stop owning one of the slabs whose last content is gone.
    pub(crate) fn next_emptied(&mut self) -> Option<SlabId> {
        while let Some(slab) = self.emptied.pop() {
            // It may have been allocated from since, or been noted twice.
            if self.give_up(slab) {
                return Some(slab);
            }
        }
        None
    }

    fn give_up(&mut self, slab: SlabId) -> bool {
        let Some(slabs) = self.slabs.as_mut().filter(|s| s.owns(slab) && s.is_all_free(slab))
        else {
            return false;
        };
        let blocks = slabs.blocks_of(slab);
        slabs.give_up(slab);
        self.num_free -= blocks.end - blocks.start;
        self.state[blocks.start as usize..blocks.end as usize].fill(ABSENT);
        true
    }

    /// Drop the content of every cached block.
    ///
    /// # Errors
    /// [`Error::BlocksInUse`] while a block is live.
    pub(crate) fn reset(&mut self) -> Result<(), Error> {
        if self.num_live > 0 {
            return Err(Error::BlocksInUse { num_blocks: self.num_live });
        }
        if self.slabs.is_some() {
            while let Some(block) = self.coldest_cached() {
                self.clear_keyed(block);
            }
        } else {
            for block in self.links.iter(self.cached) {
                self.state[block as usize] = 0;
            }
            self.links.append(self.links.list(1), self.cached);
            self.num_free += std::mem::take(&mut self.num_cached);
        }
        Ok(())
    }

    /// Heap bytes held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.state.len() * size_of::<u32>()
            + self.links.memory_bytes()
            + self.worth.len() * size_of::<u64>()
            + self.slabs.as_ref().map_or(0, Slabs::memory_bytes)
    }

    /// Walk everything; the first broken promise is described.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut listed = vec![false; self.state.len()];
        for block in self.iter_available() {
            if std::mem::replace(&mut listed[block.index()], true) {
                return Err(format!("block {block} is listed twice"));
            }
        }
        let mut counts = [0u32; 3];
        let mut per_slab = vec![(0, 0); self.slabs.as_ref().map_or(0, |_| self.state.len())];
        for (block, &state) in self.state.iter().enumerate() {
            let slab = self.slabs.as_ref().map(|slabs| slabs.slab_of(block as u32));
            let owned = match (&self.slabs, slab) {
                (Some(slabs), Some(slab)) => slabs.owns(slab),
                _ => block != 0,
            };
            if owned == (state & ABSENT != 0) {
                return Err(format!("block {block} has state {state:#x}, owned {owned}"));
            }
            let live = state & REFS > 0;
            if listed[block] != (owned && !live) {
                return Err(format!(
                    "block {block} has state {state:#x}, listed {}",
                    listed[block]
                ));
            }
            if live && state & COLD != 0 {
                return Err(format!("live block {block} waits among the cached"));
            }
            if self.slabs.is_some() && !live && (state & COLD != 0) != (state & KEYED != 0) {
                return Err(format!("ownerless block {block} has state {state:#x}"));
            }
            if owned {
                counts[if live { 2 } else { usize::from(state & COLD != 0) }] += 1;
                if let Some(slab) = slab {
                    per_slab[slab.index()].0 += u32::from(live);
                    per_slab[slab.index()].1 += u32::from(!live && state & COLD == 0);
                }
            }
        }
        if counts != [self.num_free, self.num_cached, self.num_live] {
            return Err(format!(
                "free, cached, live are {counts:?}, kept as {:?}",
                [self.num_free, self.num_cached, self.num_live]
            ));
        }
        let Some(slabs) = &self.slabs else { return Ok(()) };
        for (slab, &(live, free)) in per_slab.iter().enumerate() {
            let slab = SlabId(slab as u32);
            if slabs.blocks_of(slab).end <= self.num_ids()
                && slabs.owns(slab)
                && (slabs.num_live_in(slab), slabs.num_free_in(slab)) != (live, free)
            {
                return Err(format!("slab {slab} has {live} live and {free} free blocks"));
            }
        }
        slabs.check()
    }
}
