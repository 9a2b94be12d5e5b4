//! [`Store`]: the interface of all stores.

use std::fmt::Debug;

use super::parts::{Parts, READ_AHEAD};
use super::{Reservation, SlabStore};
use crate::error::{Error, Unit};
use crate::ids::{BlockId, GroupId, PoolId, SlabId};
use crate::pool::{BesideLive, BlockStates};
use crate::prefix_index::{Inserted, Key, PrefixIndex};
use hybrid_blocks_hash::Digest;

/// Interface of every store. Code that is generic over it is compiled once for each store.
///
/// An eviction drops the keys of the evicted block and appends them to [`EvictionOrder::evicted`](super::EvictionOrder::evicted).
pub trait Store: Parts + Debug {
    /// Counts of a pool's blocks, and the owners of each.
    fn pool(&self, pool: PoolId) -> &BlockStates;

    /// Returns the contents of a pool's blocks.
    fn prefix_index(&self, pool: PoolId) -> &PrefixIndex;

    /// Ownerless blocks of `pool`; in a fixed store, the next to be allocated first.
    fn free_order(&self, pool: PoolId) -> Vec<BlockId>;

    /// This store, if its pools share slabs.
    fn as_slabs(&self) -> Option<&SlabStore> {
        None
    }

    /// This store, if its pools share slabs.
    fn as_slabs_mut(&mut self) -> Option<&mut SlabStore> {
        None
    }

    /// Whether the pools share slabs.
    fn is_slabbed(&self) -> bool {
        self.as_slabs().is_some()
    }

    /// Returns the unit of [`Error::OutOfBlocks`] and of this store's slab counts.
    fn unit(&self) -> Unit {
        if self.is_slabbed() { Unit::Slabs } else { Unit::Blocks }
    }

    /// Returns the number of pools.
    fn num_pools(&self) -> u32 {
        self.as_slabs().map_or(1, |slabs| slabs.pools.len() as u32)
    }

    /// Blocks of `pool` that could be allocated if nothing else were.
    fn num_available(&self, pool: PoolId) -> u64 {
        let slack = self.as_slabs().map_or(0, |slabs| slabs.slabs(pool).slack());
        slack + self.num_whole_slabs() * u64::from(self.blocks_per_slab(pool))
    }

    /// Slabs that can hold something. A fixed store counts each block as a slab here and below.
    fn num_slabs(&self) -> u64 {
        let slabs = self.as_slabs().map(|slabs| slabs.num_slabs);
        u64::from(slabs.unwrap_or_else(|| self.pool(PoolId(0)).num_ids())) - 1
    }

    /// Slabs that no pool owns.
    fn num_free_slabs(&self) -> u32 {
        let slabs = self.as_slabs().map(|slabs| slabs.free_slabs.len() as u32);
        slabs.unwrap_or_else(|| self.pool(PoolId(0)).num_free())
    }

    /// Slabs that can be had whole: those that no pool owns and those without a live block.
    fn num_whole_slabs(&self) -> u64 {
        let whole = self.as_slabs().map(SlabStore::num_whole);
        whole.unwrap_or_else(|| self.pool(PoolId(0)).num_available().into())
    }

    /// Blocks a slab of `pool`.
    fn blocks_per_slab(&self, pool: PoolId) -> u32 {
        self.as_slabs().map_or(1, |slabs| slabs.slabs(pool).blocks_per_slab())
    }

    /// The slab of a block; `None` for the null block and in a fixed store.
    fn slab_of(&self, pool: PoolId, block: BlockId) -> Option<SlabId> {
        let slabs = self.as_slabs().filter(|_| !block.is_null())?;
        Some(slabs.slabs(pool).slab_of(block.0))
    }

    /// Live blocks in a slab of `pool`; 0 in a fixed store.
    fn num_live_in(&self, pool: PoolId, slab: SlabId) -> u32 {
        self.as_slabs().map_or(0, |slabs| slabs.slabs(pool).num_live_in(slab))
    }

    /// Returns the slabs of a pool that hold live blocks, and their other blocks.
    fn beside_live(&self, pool: PoolId) -> BesideLive {
        let num_live = u64::from(self.pool(pool).num_live());
        let fixed = BesideLive { num_slabs: num_live, ..BesideLive::default() };
        self.as_slabs().map_or(fixed, |slabs| slabs.slabs(pool).beside_live())
    }

    /// Checks that `demand[pool]` blocks of every pool can be had together. Returns how many whole slabs (blocks of
    /// a fixed store) are left.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`].
    fn reserve(&self, demand: &[u64], reservation: &mut Reservation) -> Result<u64, Error> {
        let available = self.num_whole_slabs();
        let needed = match self.as_slabs() {
            Some(slabs) => reservation.set_needed(slabs, demand),
            None => demand[0],
        };
        if needed > available {
            return Err(Error::OutOfBlocks { unit: self.unit(), needed, available });
        }
        reservation.slabs_spare = available - needed;
        Ok(reservation.slabs_spare)
    }

    /// Appends `num_blocks` new blocks of `pool` to `out`, each with one owner, from slab `near` first.
    /// They must have been reserved.
    fn take(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        near: Option<SlabId>,
        reservation: &mut Reservation,
        out: &mut Vec<BlockId>,
    );

    /// Appends `num_blocks` new blocks of `pool` to `out`, each with one owner. Free blocks go first,
    /// then cached blocks are evicted.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`]; then nothing was allocated.
    fn allocate(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        out: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        let mut demand = vec![0; self.num_pools() as usize];
        demand[pool.index()] = num_blocks;
        let mut reservation = Reservation::default();
        self.reserve(&demand, &mut reservation)?;
        self.take(pool, num_blocks, None, &mut reservation, out);
        Ok(())
    }

    /// Adds an owner to a block.
    ///
    /// # Errors
    /// [`Error::ForeignBlock`].
    #[inline]
    fn touch(&mut self, pool: PoolId, block: BlockId) -> Result<(), Error> {
        self.touch_all(pool, std::iter::once(block))
    }

    /// As [`Store::touch`] for each block. All of them can be undone, the last first, but not some.
    ///
    /// # Errors
    /// [`Error::ForeignBlock`]; then those before it were touched.
    fn touch_all(
        &mut self,
        pool: PoolId,
        blocks: impl Iterator<Item = BlockId>,
    ) -> Result<(), Error>;

    /// Undoes the latest touch of a live or cached block that is not yet undone, exactly.
    fn undo_touch(&mut self, pool: PoolId, block: BlockId);

    /// Takes one owner from each block. Cached blocks will be evicted in the order given.
    ///
    /// # Errors
    /// [`Error::NotLive`]; then nothing was freed.
    fn free(
        &mut self,
        pool: PoolId,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error>;

    /// The block that has carried a key longest.
    #[inline]
    fn get(&self, pool: PoolId, key: &Key) -> Option<BlockId> {
        self.prefix_index(pool).get(key)
    }

    /// Reads what an insertion of `key` for `block` looks at, so that it is in the CPU's cache then.
    #[inline]
    fn read_ahead(&self, pool: PoolId, block: BlockId, key: &Key) -> u32 {
        let index = self.prefix_index(pool);
        u32::from(self.pool(pool).is_hashed(block))
            ^ index.read_ahead(key)
            ^ index.read_ahead_of(block)
    }

    /// Lets `block` be found under `key`, which stands for `num_tokens` tokens. Returns whether it was
    /// not before.
    #[inline]
    fn insert_key(&mut self, pool: PoolId, block: BlockId, key: &Key, num_tokens: u32) -> bool {
        self.parts(pool).insert(block, key, num_tokens) != Inserted::Known
    }

    /// As [`Store::insert_key`] for blocks that look-ups will ask for in a row, after `before`. A
    /// slab store also frees an ownerless block that contains the same.
    fn insert_run(
        &mut self,
        pool: PoolId,
        mut before: Option<BlockId>,
        mut entries: impl Iterator<Item = (BlockId, Key, u32)>,
    ) {
        let none = Key { digest: [0; Digest::MAX_LEN].into(), group: GroupId(0) };
        let mut batch = [(BlockId::NULL, none, 0); READ_AHEAD];
        loop {
            let filled = batch.iter_mut().zip(&mut entries).map(|(slot, entry)| *slot = entry);
            let mut left = match filled.count() {
                0 => return,
                count => &batch[..count],
            };
            self.parts(pool).read_ahead(left);
            while let Some(at) = self.parts(pool).insert_run(&mut before, left) {
                self.drop_duplicate(pool, &left[at].1, left[at].0);
                left = &left[at + 1..];
            }
        }
    }

    /// Gives all keys of `from` to `to`, which has none: the content was copied, `from` will change.
    fn move_keys(&mut self, pool: PoolId, from: BlockId, to: BlockId) {
        if self.pool(pool).is_hashed(from) {
            let parts = self.parts(pool);
            parts.index.move_keys(from, to);
            parts.states.set_hashed(to);
            parts.journal.num_changes += 1;
            self.clear_hashed(pool, from);
        }
    }

    /// Forgets what `block` contains; its keys are noted as evicted.
    fn drop_keys(&mut self, pool: PoolId, block: BlockId) {
        let states = self.pool(pool);
        let is_live = states.is_hashed(block) && states.ref_count(block) > 0;
        self.journal_mut().num_dropped += u64::from(is_live);
        self.drop_own_keys(pool, block);
    }

    /// As [`Store::drop_keys`], for the block's only owner.
    fn drop_own_keys(&mut self, pool: PoolId, block: BlockId) {
        if self.pool(pool).is_hashed(block) {
            self.parts(pool).forget(block);
            self.clear_hashed(pool, block);
        }
    }

    /// Drops the block that carries `key`, if it has no owner.
    fn discard(&mut self, pool: PoolId, key: &Key) {
        if let Some(block) = self.get(pool, key)
            && self.pool(pool).ref_count(block) == 0
        {
            self.drop_keys(pool, block);
            self.collect_emptied(pool);
        }
    }

    /// Drops all cached content.
    ///
    /// # Errors
    /// [`Error::BlocksInUse`] while any block is live.
    fn reset(&mut self) -> Result<(), Error> {
        let pools = (0..self.num_pools()).map(PoolId);
        let num_blocks = pools.clone().map(|pool| self.pool(pool).num_live()).sum();
        if num_blocks > 0 {
            return Err(Error::BlocksInUse { num_blocks });
        }
        self.journal_mut().num_changes += 1;
        for pool in pools {
            self.parts(pool).index.clear();
            self.reset_pool(pool);
            self.collect_emptied(pool);
        }
        Ok(())
    }

    /// Keys inserted, moved and evicted so far, and resets. While it stays the same, every look-up gives the
    /// same result.
    fn num_changes(&self) -> u64 {
        self.journal().num_changes
    }

    /// Counts live blocks whose keys somebody else than their owner dropped.
    fn num_dropped(&self) -> u64 {
        self.journal().num_dropped
    }

    /// Heap bytes held, but for duplicates and extra keys.
    fn memory_bytes(&self) -> usize;

    /// Walks everything: lists, states, counts and indexes must agree.
    ///
    /// # Errors
    /// The first contradiction, in words.
    fn check_integrity(&self) -> Result<(), String>;
}
