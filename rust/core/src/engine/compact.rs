//! Emptying slabs by moving live blocks, so that another pool can have them.

use rustc_hash::FxHashMap;

use super::requests::RequestState;
use super::{BlockCopy, Engine};
use crate::error::Error;
use crate::ids::{BlockId, GroupId, PoolId, SlabId};
use crate::store::Store;

/// Moves that free slabs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    slabs: Vec<(PoolId, SlabId)>,
    num_moves: usize,
    /// The state of the engine that it was planned for.
    version: u64,
}

impl Compaction {
    /// Slabs that come free.
    #[must_use]
    pub fn num_slabs(&self) -> usize {
        self.slabs.len()
    }

    /// Blocks that have to be moved for it.
    #[must_use]
    pub fn num_moves(&self) -> usize {
        self.num_moves
    }
}

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
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) tables: Vec<TableChange>,
    /// Blocks that moved within their pool: source and destination.
    pub(crate) blocks: Vec<(PoolId, BlockId, BlockId)>,
}

/// Where each block stands in the tables: row, group and position.
type Places = FxHashMap<(PoolId, BlockId), Vec<(usize, GroupId, u32)>>;

impl<S: Store, R: RequestState> Engine<S, R> {
    /// Find up to `num_slabs` slabs whose live blocks fit into other slabs of their pool, those with
    /// the smallest share of live blocks first. Changes nothing.
    pub(crate) fn plan_compaction(&self, num_slabs: usize) -> Compaction {
        let version = self.version;
        let Some(store) = self.cache.store.as_slabs() else {
            return Compaction { version, ..Compaction::default() };
        };
        let slabs = store.movable_slabs(num_slabs);
        let num_moves = slabs.iter().map(|&(pool, slab)| store.live_in(pool, slab).len()).sum();
        Compaction { slabs, num_moves, version }
    }

    /// Carry out a plan: the blocks' owners and keys move now, the bytes follow with the next copies.
    /// What is merely cached in the slabs is dropped.
    pub(crate) fn apply_compaction(&mut self, plan: &Compaction) -> Result<Moved, Error> {
        if plan.version != self.version {
            return Err(Error::InvalidArgument(
                "the compaction was planned for another state; plan it again".to_owned(),
            ));
        }
        self.version += 1;
        let mut moved = Moved::default();
        let places = self.places(&plan.slabs);
        let mut targets = vec![None; self.cache.demand.len()];
        for &(pool, slab) in &plan.slabs {
            let Some(store) = self.cache.store.as_slabs_mut() else { break };
            let targets = targets[pool.index()]
                .get_or_insert_with(|| store.move_targets(pool, plan.num_moves, &plan.slabs));
            for src in store.live_in(pool, slab) {
                let Some(dst) = store.relocate(pool, src, &plan.slabs, targets) else {
                    debug_assert!(false, "a planned move has no room");
                    continue;
                };
                let found = places.get(&(pool, src)).map_or(&[][..], Vec::as_slice);
                // Whose layers the bytes belong to.
                let key = store.prefix_index(pool).first_key(dst);
                let group = found.first().map(|&(_, group, _)| group);
                let group = group.or(key.map(|(key, _)| key.group)).unwrap_or_default();
                self.cache.outbox.copies.push(BlockCopy { group, src, dst });
                moved.blocks.push((pool, src, dst));
                for held in self.held.iter_mut().chain(&mut self.copied) {
                    if *held == (pool, src) {
                        held.1 = dst;
                    }
                }
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
