//! The block store: pools and their prefix indexes over one arena.

use std::hint::black_box;

use crate::arena::Arena;
use crate::error::Error;
use crate::ids::{BlockId, PoolId, SlabId};
use crate::pool::Pool;
use crate::prefix_index::{Inserted, Key, PrefixIndex, Trail};
use crate::slabs::Slabs;

/// Keys whose places in the index are fetched at a time: they lie anywhere, and one after the other
/// each would be waited for.
const READ_AHEAD: usize = 16;

/// Blocks of all sizes, with what they contain. Every eviction drops the keys of the evicted block
/// and notes them, in order.
#[derive(Debug)]
pub struct BlockStore {
    arena: Arena,
    pools: Vec<Pool>,
    indexes: Vec<PrefixIndex>,
    evicted: Vec<Key>,
    num_changes: u64,
    num_dropped: u64,
    /// First digest bytes of keys evicted last, by pool: for statistics only, so it may forget.
    ghosts: Vec<Vec<u64>>,
    by_worth: bool,
    now: u64,
}

/// Room promised to one allocation that spans several pools: how many more whole slabs each pool
/// may start on without taking what the others of the same allocation need.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    slabs_needed: Vec<u64>,
    slabs_spare: u64,
}

impl BlockStore {
    /// One pool that owns everything: `num_blocks` blocks with the null block. Its decisions are
    /// vLLM's.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for 0 or too many blocks.
    pub fn fixed(num_blocks: u32) -> Result<Self, Error> {
        Ok(Self {
            arena: Arena::new(0, 0),
            pools: vec![Pool::fixed(num_blocks)?],
            indexes: vec![PrefixIndex::new(num_blocks)],
            evicted: Vec::new(),
            num_changes: 0,
            num_dropped: 0,
            ghosts: vec![Vec::new()],
            by_worth: false,
            now: 0,
        })
    }

    /// Pools over one arena of `num_slabs`, of which the first stays empty for the null block.
    /// `blocks_per_slab` has one entry a pool.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] without pools, with fewer than 2 slabs, or with too many blocks.
    pub fn shared(num_slabs: u32, blocks_per_slab: &[u32]) -> Result<Self, Error> {
        if blocks_per_slab.is_empty() || num_slabs < 2 {
            return Err(Error::InvalidConfig(format!(
                "{} pools over {num_slabs} slabs: at least 1 pool and 2 slabs are needed, \
                 the first slab is the null block's",
                blocks_per_slab.len()
            )));
        }
        let pools = blocks_per_slab
            .iter()
            .map(|&blocks| Pool::shared(num_slabs, blocks))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            arena: Arena::new(num_slabs, 1),
            indexes: pools.iter().map(|pool| PrefixIndex::new(pool.num_ids())).collect(),
            ghosts: pools.iter().map(|pool| vec![0; pool.num_ids() as usize]).collect(),
            pools,
            evicted: Vec::new(),
            num_changes: 0,
            by_worth: false,
            num_dropped: 0,
            now: 0,
        })
    }

    /// Whether several pools share the arena. A fixed store counts single blocks as slabs.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.arena.num_slabs() > 0
    }

    /// Pools.
    #[must_use]
    pub fn num_pools(&self) -> u32 {
        self.pools.len() as u32
    }

    /// A pool.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> &Pool {
        &self.pools[pool.index()]
    }

    /// What a pool's blocks contain.
    #[must_use]
    pub fn prefix_index(&self, pool: PoolId) -> &PrefixIndex {
        &self.indexes[pool.index()]
    }

    /// Slabs that no pool owns.
    #[must_use]
    pub fn num_free_slabs(&self) -> u32 {
        self.arena.num_free()
    }

    /// Slabs that can be had whole: those without owner and those without a live block.
    #[must_use]
    pub fn num_whole_slabs(&self) -> u64 {
        let idle = self.pools.iter().filter_map(Pool::slabs).map(Slabs::num_idle);
        u64::from(self.arena.num_free()) + idle.map(u64::from).sum::<u64>()
    }

    /// Blocks of `pool` that could be allocated if nothing else were.
    #[must_use]
    pub fn num_available(&self, pool: PoolId) -> u64 {
        let pool = self.pool(pool);
        match pool.slabs() {
            None => u64::from(pool.num_available()),
            Some(slabs) => {
                let whole = self.num_whole_slabs() * u64::from(slabs.blocks_of(SlabId(0)).end);
                slabs.slack() + whole
            }
        }
    }

    /// Evict what was said to be worth least, instead of what lost its last owner first. To be called
    /// before anything is cached.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a fixed store.
    pub(crate) fn order_by_worth(&mut self) -> Result<(), Error> {
        if !self.is_shared() {
            return Err(Error::InvalidConfig(
                "a fixed pool evicts by age; give the manager slabs for another policy".to_owned(),
            ));
        }
        self.by_worth = true;
        self.pools.iter_mut().for_each(Pool::order_by_worth);
        Ok(())
    }

    /// Say what a block's content is worth from the next time it loses its last owner.
    pub(crate) fn set_worth(&mut self, pool: PoolId, block: BlockId, worth: u64) {
        self.pools[pool.index()].set_worth(block, worth);
    }

    /// What a block's content is worth; by age, when it last lost its last owner.
    pub(crate) fn worth(&self, pool: PoolId, block: BlockId) -> u64 {
        self.pool(pool).worth(block)
    }

    /// Treat a cached block as if it had just lost its last owner.
    pub(crate) fn refresh(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].refresh(block);
    }

    /// Let a cached block go before all others.
    pub(crate) fn demote(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].demote(block);
    }

    /// Ticks since the start.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Let time pass. The clock only orders ages; one tick a scheduler step is enough.
    pub fn tick(&mut self) {
        self.now += 1;
        for pool in &mut self.pools {
            pool.set_now(self.now);
        }
    }

    /// Whole slabs that `pool` must start on for `num_blocks` more blocks.
    fn slabs_needed(&self, pool: PoolId, num_blocks: u64) -> u64 {
        self.pool(pool).slabs().map_or(0, |slabs| {
            let blocks_per_slab = u64::from(slabs.blocks_of(SlabId(0)).end);
            num_blocks.saturating_sub(slabs.slack()).div_ceil(blocks_per_slab)
        })
    }

    /// Check that `demand[pool]` blocks of every pool can be had together.
    ///
    /// Room in slabs with live blocks serves their own pool only; the rest of each demand needs
    /// whole slabs, and those are shared. So all demands fit exactly when the whole slabs they
    /// need, summed, are there.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`], counted in slabs where several pools share them.
    pub(crate) fn reserve(
        &self,
        demand: &[u64],
        reservation: &mut Reservation,
    ) -> Result<(), Error> {
        if !self.is_shared() {
            let available = u64::from(self.pools[0].num_available());
            return if demand[0] <= available {
                Ok(())
            } else {
                Err(Error::OutOfBlocks { needed: demand[0], available })
            };
        }
        let needed = &mut reservation.slabs_needed;
        needed.clear();
        needed.extend(
            demand.iter().enumerate().map(|(pool, &n)| self.slabs_needed(PoolId(pool as u32), n)),
        );
        let (needed, available) = (needed.iter().sum(), self.num_whole_slabs());
        if needed > available {
            return Err(Error::OutOfBlocks { needed, available });
        }
        reservation.slabs_spare = available - needed;
        Ok(())
    }

    /// Whether `demand[pool]` blocks of every pool can be had together and leave `headroom` whole
    /// slabs (blocks of a fixed store); `packed`, if the live blocks of each pool were moved
    /// together first.
    pub(crate) fn has_room(&self, demand: &[u64], headroom: u64, packed: bool) -> bool {
        if !self.is_shared() {
            return demand[0] + headroom <= u64::from(self.pools[0].num_available());
        }
        let (needed, available) = if packed {
            let slabs = |(pool, &num_blocks): (usize, &u64)| {
                let live = self.pools[pool].slabs().map_or(0, Slabs::num_live);
                let blocks_per_slab = self.blocks_per_slab(PoolId(pool as u32));
                (live + num_blocks).div_ceil(u64::from(blocks_per_slab))
            };
            (demand.iter().enumerate().map(slabs).sum::<u64>(), self.num_slabs())
        } else {
            let slabs = |(pool, &n): (usize, &u64)| self.slabs_needed(PoolId(pool as u32), n);
            (demand.iter().enumerate().map(slabs).sum(), self.num_whole_slabs())
        };
        needed + headroom <= available
    }

    /// Append `num_blocks` new blocks of `pool` to `out`, each with one owner. Cached blocks are
    /// evicted, coldest first, once no free ones are left.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`]; then nothing was allocated.
    pub fn allocate(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        out: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        let mut demand = vec![0; self.pools.len()];
        demand[pool.index()] = num_blocks;
        let mut reservation = Reservation::default();
        self.reserve(&demand, &mut reservation)?;
        self.take(pool, num_blocks, None, &mut reservation, out);
        Ok(())
    }

    /// Append `num_blocks` new blocks of `pool` to `out`, each with one owner, preferring slab
    /// `near`. They must have been reserved.
    pub(crate) fn take(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        near: Option<SlabId>,
        reservation: &mut Reservation,
        out: &mut Vec<BlockId>,
    ) {
        if self.is_shared() {
            let mut near = near;
            let mut left = num_blocks;
            out.reserve(num_blocks as usize);
            while left > 0 {
                let taken = self.take_shared(pool, near, left, reservation, out);
                if taken == 0 {
                    debug_assert!(false, "a reserved block is missing");
                    return;
                }
                left -= u64::from(taken);
                near = out.last().and_then(|&block| self.slab_of(pool, block));
            }
            return;
        }
        let taken = self.pools[pool.index()].take_free_front(num_blocks, out);
        let evicted = out.len();
        let missing = (num_blocks - u64::from(taken)) as usize;
        let coldest = std::iter::from_fn(|| self.pools[pool.index()].take_coldest());
        out.extend(coldest.take(missing));
        debug_assert_eq!(out.len() - evicted, missing, "a reserved block is missing");
        for blocks in out[evicted..].chunks(READ_AHEAD) {
            let index = &self.indexes[pool.index()];
            black_box(blocks.iter().fold(0, |all, &block| all ^ index.read_ahead_of(block)));
            for &block in blocks {
                self.forget(pool, block);
            }
        }
    }

    /// Take up to `most` blocks of one slab; says how many.
    fn take_shared(
        &mut self,
        pool: PoolId,
        near: Option<SlabId>,
        most: u64,
        reservation: &mut Reservation,
        out: &mut Vec<BlockId>,
    ) -> u32 {
        let may_start_slab =
            reservation.slabs_needed[pool.index()] > 0 || reservation.slabs_spare > 0;
        let Some(idle_before) = self.pool(pool).slabs().map(Slabs::num_idle) else { return 0 };
        if !may_start_slab {
            let from = &mut self.pools[pool.index()];
            let block = from.take_free_from_live_slab_if(|_| true).or_else(|| {
                let from = &self.pools[pool.index()];
                let block = *from.coldest_cached_in_live_slabs_if(1, |_| true).first()?;
                self.evict_into(pool, block);
                Some(block)
            });
            out.extend(block);
            return u32::from(block.is_some());
        }
        let taken = self.pools[pool.index()].take_free_run(near, most, out);
        if taken > 0 {
            self.note_started(pool, idle_before, reservation);
            return taken;
        }
        let own = self.pools[pool.index()].coldest_cached();
        let slab = self.arena.take().or_else(|| {
            let worth = own.map(|block| self.pool(pool).worth(block));
            self.reclaim_slab(pool, worth)
        });
        if let Some(slab) = slab {
            reservation.start_slab(pool);
            return self.pools[pool.index()].adopt(slab, most, out);
        }
        let Some(block) = own else { return 0 };
        self.evict_into(pool, block);
        self.note_started(pool, idle_before, reservation);
        out.push(block);
        1
    }

    fn note_started(&self, pool: PoolId, idle_before: u32, reservation: &mut Reservation) {
        if self.pool(pool).slabs().is_some_and(|slabs| slabs.num_idle() < idle_before) {
            reservation.start_slab(pool);
        }
    }

    /// Hand a cached block to a new owner.
    fn evict_into(&mut self, pool: PoolId, block: BlockId) {
        if self.pools[pool.index()].take_cached(block) {
            self.forget(pool, block);
        }
    }

    /// Empty the idle slab of another pool than `taker` that is worth least, if it is worth less
    /// than `own`.
    fn reclaim_slab(&mut self, taker: PoolId, own: Option<u64>) -> Option<SlabId> {
        let (worth, pool, slab) = (0..self.num_pools())
            .map(PoolId)
            .filter(|&pool| pool != taker)
            .filter_map(|pool| {
                let slabs = self.pool(pool).slabs()?;
                let slab = if self.by_worth {
                    slabs.idle().min_by_key(|&slab| slabs.worth(slab))
                } else {
                    slabs.idle().next()
                }?;
                Some((slabs.worth(slab), pool, slab))
            })
            .min_by_key(|&(worth, ..)| worth)?;
        if own.is_some_and(|own| own <= worth) {
            return None;
        }
        self.drop_cached_in(pool, slab);
        self.arena.take()
    }

    fn collect_emptied(&mut self, pool: PoolId) {
        let pool = &mut self.pools[pool.index()];
        while let Some(slab) = pool.next_emptied() {
            self.arena.give_back(slab);
        }
    }

    /// The slabs with live blocks of which one can be emptied most cheaply, at most `num_slabs`: all
    /// their live blocks fit into the other slabs of their pool that hold live blocks.
    pub(crate) fn movable_slabs(&self, num_slabs: usize) -> Vec<(PoolId, SlabId)> {
        let mut chosen = Vec::new();
        let mut candidates: Vec<_> = (0..self.num_pools())
            .map(PoolId)
            .filter_map(|pool| Some((pool, self.pool(pool).slabs()?)))
            .flat_map(|(pool, slabs)| slabs.live().map(move |slab| (pool, slab)))
            .collect();
        let share = |&(pool, slab): &(PoolId, SlabId)| {
            let slabs = self.pool(pool).slabs();
            slabs.map_or(0.0, |slabs| {
                f64::from(slabs.num_live_in(slab)) / f64::from(self.blocks_per_slab(pool))
            })
        };
        candidates.sort_by(|a, b| share(a).total_cmp(&share(b)));
        let mut room: Vec<u64> = (0..self.num_pools())
            .map(|pool| self.pool(PoolId(pool)).slabs().map_or(0, Slabs::slack))
            .collect();
        for (pool, slab) in candidates {
            let Some(slabs) = self.pool(pool).slabs() else { continue };
            let live = u64::from(slabs.num_live_in(slab));
            let own_room = u64::from(self.blocks_per_slab(pool)) - live;
            if chosen.len() < num_slabs && room[pool.index()] >= own_room + live {
                room[pool.index()] -= own_room + live;
                chosen.push((pool, slab));
            }
        }
        chosen
    }

    /// The live blocks of a slab.
    pub(crate) fn live_in(&self, pool: PoolId, slab: SlabId) -> Vec<BlockId> {
        self.pool(pool).live_in(slab)
    }

    /// The blocks that `count` live blocks of `pool` may be moved into once no free block is left
    /// outside the slabs `emptied`: what is cached there goes, coldest first.
    pub(crate) fn move_targets(
        &self,
        pool: PoolId,
        count: usize,
        emptied: &[(PoolId, SlabId)],
    ) -> std::vec::IntoIter<BlockId> {
        let outside = |slab: SlabId| !emptied.contains(&(pool, slab));
        self.pool(pool).coldest_cached_in_live_slabs_if(count, outside).into_iter()
    }

    /// Give the owners and the content of `src` to a block outside the slabs `emptied`, a free one or
    /// the next of `targets`, which is returned. `None` if there is no room; then nothing changed.
    pub(crate) fn relocate(
        &mut self,
        pool: PoolId,
        src: BlockId,
        emptied: &[(PoolId, SlabId)],
        targets: &mut impl Iterator<Item = BlockId>,
    ) -> Option<BlockId> {
        let outside = |slab: SlabId| !emptied.contains(&(pool, slab));
        let free = self.pools[pool.index()].take_free_from_live_slab_if(outside);
        let dst = free.or_else(|| {
            let dst = targets.next()?;
            self.evict_into(pool, dst);
            Some(dst)
        })?;
        let worth = self.worth(pool, src);
        self.indexes[pool.index()].move_keys(src, dst);
        self.pools[pool.index()].move_owners(src, dst);
        self.set_worth(pool, dst, worth);
        self.collect_emptied(pool);
        Some(dst)
    }

    /// Drop what is cached in a slab without live blocks, so that it comes free.
    pub(crate) fn drop_cached_in(&mut self, pool: PoolId, slab: SlabId) {
        for block in self.pool(pool).cached_in(slab) {
            self.drop_keys(pool, block);
        }
        self.collect_emptied(pool);
    }

    /// Add an owner to a block.
    ///
    /// # Errors
    /// [`Error::ForeignBlock`].
    #[inline]
    pub fn touch(&mut self, pool: PoolId, block: BlockId) -> Result<(), Error> {
        self.pools[pool.index()].touch(block)
    }

    /// Undo the latest touch that is not yet undone.
    pub(crate) fn undo_touch(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].undo_touch(block);
    }

    /// Take one owner from each block, in the order in which they should go.
    ///
    /// # Errors
    /// [`Error::NotLive`]; then nothing was freed.
    pub fn free(
        &mut self,
        pool: PoolId,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        self.pools[pool.index()].free(blocks)?;
        self.collect_emptied(pool);
        Ok(())
    }

    /// As [`BlockStore::get`], where the content before was found along `trail`.
    #[inline]
    pub(crate) fn get_after(&self, pool: PoolId, trail: Trail, key: &Key) -> Option<BlockId> {
        self.indexes[pool.index()].get_after(trail, key)
    }

    /// As [`BlockStore::free`], but every block ends at the warm end, keyed or not.
    ///
    /// # Errors
    /// As [`Pool::free_warm`].
    pub fn free_warm(
        &mut self,
        pool: PoolId,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        self.pools[pool.index()].free_warm(blocks)
    }

    /// Give all keys of `from` to `to`, which has none: the content was copied, `from` will change.
    pub fn move_keys(&mut self, pool: PoolId, from: BlockId, to: BlockId) {
        if self.pools[pool.index()].is_keyed(from) {
            self.indexes[pool.index()].move_keys(from, to);
            self.pools[pool.index()].clear_keyed(from);
            self.pools[pool.index()].set_keyed(to);
        }
    }

    /// Let `block` be found under `key`. Says whether it was not before.
    #[inline]
    pub fn insert_key(&mut self, pool: PoolId, block: BlockId, key: &Key, num_tokens: u32) -> bool {
        self.enter(pool, block, key, num_tokens) != Inserted::Known
    }

    #[inline]
    fn enter(&mut self, pool: PoolId, block: BlockId, key: &Key, num_tokens: u32) -> Inserted {
        debug_assert!(!block.is_null());
        let inserted = self.indexes[pool.index()].insert(block, key, num_tokens);
        self.pools[pool.index()].set_keyed(block);
        self.num_changes += u64::from(inserted != Inserted::Known);
        inserted
    }

    /// Let blocks be found under their keys, with the tokens each stands for. They will be looked
    /// for in a row, after `before`.
    pub(crate) fn insert_run(
        &mut self,
        pool: PoolId,
        mut before: Option<BlockId>,
        mut entries: impl Iterator<Item = (BlockId, Key, u32)> + Clone,
    ) {
        let (index, pool) = (&mut self.indexes[pool.index()], &mut self.pools[pool.index()]);
        let mut num_entered = READ_AHEAD;
        while num_entered == READ_AHEAD {
            let ahead = entries.clone().take(READ_AHEAD);
            black_box(ahead.fold(0, |all, (_, key, _)| all ^ index.read_ahead(&key)));
            num_entered = 0;
            for (block, key, num_tokens) in entries.by_ref().take(READ_AHEAD) {
                let inserted = index.insert(block, &key, num_tokens);
                pool.set_keyed(block);
                self.num_changes += u64::from(inserted != Inserted::Known);
                if let Some(before) = before.replace(block) {
                    index.follow(before, block);
                }
                num_entered += 1;
            }
        }
    }

    /// Have what an insertion of `key` for `block` looks at fetched.
    #[inline]
    pub(crate) fn read_ahead(&self, pool: PoolId, block: BlockId, key: &Key) -> u32 {
        let (pool, index) = (&self.pools[pool.index()], &self.indexes[pool.index()]);
        pool.read_ahead(block) ^ index.read_ahead(key) ^ index.read_ahead_of(block)
    }

    /// Let `block` be found under `key`, and not what contains the same without an owner.
    pub(crate) fn insert_sole(&mut self, pool: PoolId, block: BlockId, key: &Key, num_tokens: u32) {
        if self.enter(pool, block, key, num_tokens) != Inserted::Sole {
            self.drop_twin(pool, key, block);
        }
    }

    /// Free an ownerless block that contains what `kept` contains under `key`, and nothing else, and
    /// note its key as evicted. There is hardly ever more than one. A fixed store keeps it, as vLLM
    /// does.
    fn drop_twin(&mut self, pool: PoolId, key: &Key, kept: BlockId) {
        if !self.is_shared() {
            return;
        }
        let (index, blocks) = (&self.indexes[pool.index()], &self.pools[pool.index()]);
        let mut twins = index.blocks(key).filter(|&block| {
            block != kept
                && blocks.ref_count(block) == 0
                && index.further_keys(block).next().is_none()
        });
        let Some(twin) = twins.next() else { return };
        drop(twins);
        self.indexes[pool.index()].remove_block(twin, &mut self.evicted);
        self.pools[pool.index()].clear_keyed(twin);
        self.num_changes += 1;
    }

    /// Forget what `block` contains; its keys are noted as evicted.
    pub fn drop_keys(&mut self, pool: PoolId, block: BlockId) {
        let blocks = self.pool(pool);
        self.num_dropped += u64::from(blocks.is_keyed(block) && blocks.ref_count(block) > 0);
        self.drop_own_keys(pool, block);
    }

    /// As [`BlockStore::drop_keys`], for the block's only owner.
    pub(crate) fn drop_own_keys(&mut self, pool: PoolId, block: BlockId) {
        if self.pools[pool.index()].is_keyed(block) {
            self.forget(pool, block);
            self.pools[pool.index()].clear_keyed(block);
        }
    }

    /// Drop the block that carries `key`, if nobody owns it.
    pub(crate) fn discard(&mut self, pool: PoolId, key: &Key) {
        if let Some(block) = self.get(pool, key)
            && self.pool(pool).ref_count(block) == 0
        {
            self.drop_keys(pool, block);
            self.collect_emptied(pool);
        }
    }

    /// Remember that `block` was entered after `previous`, for the next look-up.
    pub(crate) fn follow(&mut self, pool: PoolId, previous: BlockId, block: BlockId) {
        self.indexes[pool.index()].follow(previous, block);
    }

    /// The block that has carried a key longest.
    #[inline]
    #[must_use]
    pub fn get(&self, pool: PoolId, key: &Key) -> Option<BlockId> {
        self.indexes[pool.index()].get(key)
    }

    /// Drop all cached content.
    ///
    /// # Errors
    /// [`Error::BlocksInUse`] while any block is live.
    pub fn reset(&mut self) -> Result<(), Error> {
        let num_blocks = self.pools.iter().map(Pool::num_live).sum();
        if num_blocks > 0 {
            return Err(Error::BlocksInUse { num_blocks });
        }
        self.num_changes += 1;
        for pool in 0..self.pools.len() {
            self.indexes[pool].clear();
            self.pools[pool].reset()?;
            self.collect_emptied(PoolId(pool as u32));
        }
        Ok(())
    }

    /// Keys whose blocks were evicted since they were last drained, in order.
    pub fn evicted(&mut self) -> &mut Vec<Key> {
        &mut self.evicted
    }

    /// Keys entered and evicted since the start, resets included: what was found once, and no more
    /// than that, is still there while this does not change.
    pub(crate) fn num_changes(&self) -> u64 {
        self.num_changes
    }

    /// Live blocks whose keys were dropped since the start, other than by their owner: what owners
    /// made of their blocks is still there while this does not change.
    pub(crate) fn num_dropped(&self) -> u64 {
        self.num_dropped
    }

    /// The slab of a block, where slabs matter.
    pub(crate) fn slab_of(&self, pool: PoolId, block: BlockId) -> Option<SlabId> {
        (!block.is_null()).then_some(self.pool(pool).slabs()?.slab_of(block.0))
    }

    /// Blocks a slab of `pool`; a fixed pool counts single blocks.
    #[must_use]
    pub fn blocks_per_slab(&self, pool: PoolId) -> u32 {
        self.pool(pool).slabs().map_or(1, |slabs| slabs.blocks_of(SlabId(0)).end)
    }

    /// Slabs (blocks of a fixed pool) that can hold something.
    #[must_use]
    pub fn num_slabs(&self) -> u64 {
        let all = if self.is_shared() { self.arena.num_slabs() } else { self.pools[0].num_ids() };
        u64::from(all) - 1
    }

    fn forget(&mut self, pool: PoolId, block: BlockId) {
        let before = self.evicted.len();
        self.indexes[pool.index()].remove_block(block, &mut self.evicted);
        self.num_changes += (self.evicted.len() - before) as u64;
        let ghosts = &mut self.ghosts[pool.index()];
        if ghosts.is_empty() {
            return;
        }
        for key in &self.evicted[before..] {
            let ghost = key.digest.prefix();
            let at = ghost % ghosts.len() as u64;
            ghosts[at as usize] = ghost;
        }
    }

    /// Whether content under `key` was evicted not long ago, as far as is remembered. A fixed store
    /// remembers nothing.
    pub(crate) fn was_evicted(&self, pool: PoolId, key: &Key) -> bool {
        let ghosts = &self.ghosts[pool.index()];
        let ghost = key.digest.prefix();
        !ghosts.is_empty() && ghosts[(ghost % ghosts.len() as u64) as usize] == ghost
    }

    /// Heap bytes held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let pools: usize = self.pools.iter().map(Pool::memory_bytes).sum();
        pools + self.indexes.iter().map(PrefixIndex::memory_bytes).sum::<usize>()
    }

    /// Walk everything; the first broken promise is described.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut owners = vec![0u32; self.arena.num_slabs() as usize];
        for slab in self.arena.free_slabs() {
            owners[slab.index()] += 1;
        }
        for (pool, index) in self.pools.iter().zip(&self.indexes) {
            pool.check()?;
            index.check()?;
            for block in (1..pool.num_ids()).map(BlockId) {
                if pool.is_keyed(block) != index.first_key(block).is_some() {
                    return Err(format!("block {block}: pool and index disagree on its keys"));
                }
            }
            if let Some(slabs) = pool.slabs() {
                for slab in (0..self.arena.num_slabs()).map(SlabId).filter(|&s| slabs.owns(s)) {
                    owners[slab.index()] += 1;
                }
            }
        }
        match owners.iter().skip(1).position(|&count| count != 1) {
            Some(slab) => Err(format!("slab {} has {} owners", slab + 1, owners[slab + 1])),
            None => Ok(()),
        }
    }
}

impl Reservation {
    fn start_slab(&mut self, pool: PoolId) {
        let needed = &mut self.slabs_needed[pool.index()];
        if *needed > 0 {
            *needed -= 1;
        } else {
            self.slabs_spare -= 1;
        }
    }
}
