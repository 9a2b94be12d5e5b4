//! Emptying slabs by moving live blocks, so that another pool can have them.

use rustc_hash::FxHashMap;

use super::requests::RequestState;
use super::{BlockCopy, Engine};
use crate::error::Error;
use crate::ids::{BlockId, GroupId, PoolId, SlabId};
use crate::store::Store;

/// One changed entry of a block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TableChange {
    /// The low 32 bits of the request's handle.
    pub row: u32,
    /// Group.
    pub group: GroupId,
    /// Position in the table.
    pub position: u32,
    /// What stands there now.
    pub block: BlockId,
}

/// What a compaction changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Slabs that came free.
    pub num_slabs: usize,
    /// Where blocks of requests are now.
    pub tables: Vec<TableChange>,
    /// Bytes to be copied before anything else is computed or copied.
    pub copies: Vec<BlockCopy>,
}

/// Where each block stands in the tables: row, group and position.
type Places = FxHashMap<(PoolId, BlockId), Vec<(usize, GroupId, u32)>>;

impl<S: Store, R: RequestState> Engine<S, R> {
    /// Empties up to `num_slabs` slabs whose live blocks fit into other slabs of their pool, those
    /// with the smallest share of live blocks first. What is merely cached in them is dropped.
    pub(crate) fn compact(&mut self, num_slabs: usize) -> Result<Moved, Error> {
        if !self.cache.outbox.copies.is_empty() {
            return Err(Error::InvalidArgument(format!(
                "{} copies wait to be taken, of blocks that would move; take them first",
                self.cache.outbox.copies.len()
            )));
        }
        let Some(store) = self.cache.store.as_slabs() else { return Ok(Moved::default()) };
        let slabs = store.movable_slabs(num_slabs);
        let num_moves = slabs.iter().map(|&(pool, slab)| store.live_in(pool, slab).len()).sum();
        let mut moved = Moved { num_slabs: slabs.len(), ..Moved::default() };
        let places = self.places(&slabs);
        let mut targets = vec![None; self.cache.demand.len()];
        for &(pool, slab) in &slabs {
            let Some(store) = self.cache.store.as_slabs_mut() else { break };
            let targets = targets[pool.index()]
                .get_or_insert_with(|| store.move_targets(pool, num_moves, &slabs));
            for src in store.live_in(pool, slab) {
                let Some(dst) = store.relocate(pool, src, &slabs, targets) else {
                    debug_assert!(false, "a planned move has no room");
                    continue;
                };
                let found = places.get(&(pool, src)).map_or(&[][..], Vec::as_slice);
                // Whose layers the bytes belong to.
                let group = found.first().map(|&(_, group, _)| group).unwrap_or_default();
                moved.copies.push(BlockCopy { group, src, dst, src_pool: pool, dst_pool: pool });
                for &(row, group, position) in found {
                    let (_, tables) = self.requests.split_mut(row);
                    tables[group.index()].blocks[position as usize] = dst;
                    moved.tables.push(TableChange { row: row as u32, group, position, block: dst });
                }
            }
            store.drop_cached_in(pool, slab);
        }
        self.cache.note_evictions();
        Ok(moved)
    }

    /// The tables that name a block of `slabs`.
    fn places(&self, slabs: &[(PoolId, SlabId)]) -> Places {
        let mut places = Places::default();
        for row in self.requests.taken() {
            for (group, table) in self.cache.groups.iter().zip(self.requests.tables(row)) {
                let pool = group.spec.pool;
                if slabs.iter().all(|&(other, _)| other != pool) {
                    continue;
                }
                for (position, &block) in (0..).zip(&table.blocks) {
                    let slab = self.cache.store.slab_of(pool, block);
                    if slab.is_some_and(|slab| slabs.contains(&(pool, slab))) {
                        places.entry((pool, block)).or_default().push((row, group.id, position));
                    }
                }
            }
        }
        places
    }
}
