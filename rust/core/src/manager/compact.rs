//! Emptying slabs by moving live blocks, so that another pool can have them.

use rustc_hash::FxHashMap;

use super::{BlockCopy, Manager, TableChange};
use crate::error::Error;
use crate::ids::{BlockId, GroupId, PoolId, SlabId};
use crate::store::Store;

/// Moves that free slabs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    slabs: Vec<(PoolId, SlabId)>,
    num_moves: usize,
    /// The state of the manager that it was planned for.
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

/// Where a block stands in the tables.
type Places = FxHashMap<BlockId, Vec<(usize, GroupId, u32)>>;

/// What the moves within one pool look up.
#[derive(Clone)]
struct Moving {
    places: Places,
    targets: std::vec::IntoIter<BlockId>,
}

impl Manager {
    /// Find up to `num_slabs` slabs whose live blocks fit into other slabs of their pool, those with
    /// the smallest share of live blocks first. Changes nothing.
    #[must_use]
    pub fn plan_compaction(&self, num_slabs: usize) -> Compaction {
        let mut plan = Compaction { version: self.version, ..Compaction::default() };
        if let Some(store) = self.store.as_slabs() {
            plan.slabs = store.movable_slabs(num_slabs);
            let num_live = |&(pool, slab): &_| store.live_in(pool, slab).len();
            plan.num_moves = plan.slabs.iter().map(num_live).sum();
        }
        plan
    }

    /// Carry out a plan: the blocks' owners and keys move now, the returned table changes tell
    /// where to, and the bytes follow with the next [`Manager::take_copies`]. What is merely cached
    /// in the slabs is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if anything happened since the plan was made; then nothing changed.
    pub fn apply_compaction(&mut self, plan: &Compaction) -> Result<Vec<TableChange>, Error> {
        if plan.version != self.version {
            return Err(Error::InvalidArgument(
                "the compaction was planned for another state; plan it again".to_owned(),
            ));
        }
        self.version += 1;
        let mut changes = Vec::new();
        let mut moving: Vec<Option<Moving>> = vec![None; self.store.num_pools() as usize];
        for &(pool, _) in &plan.slabs {
            let Some(store) = self.store.as_slabs() else { break };
            moving[pool.index()].get_or_insert_with(|| Moving {
                places: self.places(pool, &plan.slabs),
                targets: store.move_targets(pool, plan.num_moves, &plan.slabs),
            });
        }
        for &(pool, slab) in &plan.slabs {
            let Some(Moving { places, targets }) = &mut moving[pool.index()] else { continue };
            let Some(store) = self.store.as_slabs_mut() else { break };
            for src in store.live_in(pool, slab) {
                let Some(store) = self.store.as_slabs_mut() else { break };
                let Some(dst) = store.relocate(pool, src, &plan.slabs, targets) else {
                    debug_assert!(false, "a planned move has no room");
                    continue;
                };
                let group = self.group_of(pool, dst, src, places);
                if self.coordinator.first_state().is_some_and(|first| first.spec.pool == pool) {
                    self.lineage.relocate(src, dst);
                }
                self.copies.push(BlockCopy { group, src, dst });
                for held in self.held.iter_mut().chain(&mut self.copied) {
                    if *held == (pool, src) {
                        held.1 = dst;
                    }
                }
                for &(row, group, position) in places.get(&src).into_iter().flatten() {
                    let tables = self.requests.tables_of(row);
                    let table = &mut self.requests.tables[tables][group.index()];
                    table.blocks[position as usize] = dst;
                    changes.push(TableChange { row: row as u32, group, position, block: dst });
                }
            }
            if let Some(store) = self.store.as_slabs_mut() {
                store.drop_cached_in(pool, slab);
            }
        }
        self.collect_evictions();
        if self.config.enable_delta {
            self.delta.extend_from_slice(&changes);
        }
        Ok(changes)
    }

    /// Empty `num_slabs` slabs if that can be done and is allowed. Says whether it was.
    pub(super) fn make_whole_slabs(&mut self, num_slabs: u64) -> Result<bool, Error> {
        let most = self.store.num_slabs();
        if !self.config.enable_compaction || num_slabs > most {
            return Ok(false);
        }
        let plan = self.plan_compaction(num_slabs as usize);
        if (plan.num_slabs() as u64) < num_slabs {
            return Ok(false);
        }
        self.apply_compaction(&plan)?;
        self.stats.compactions += 1;
        self.stats.moves += plan.num_moves() as u64;
        Ok(true)
    }

    /// The tables that name a block of the pool's slabs among `slabs`.
    fn places(&self, pool: PoolId, slabs: &[(PoolId, SlabId)]) -> Places {
        let mut places = Places::default();
        for row in self.requests.taken() {
            let tables = &self.requests.tables[self.requests.tables_of(row)];
            for (group, table) in self.coordinator.groups().iter().zip(tables) {
                if group.spec.pool != pool {
                    continue;
                }
                for (position, &block) in table.blocks.iter().enumerate() {
                    let slab = self.store.slab_of(pool, block);
                    if slab.is_some_and(|slab| slabs.contains(&(pool, slab))) {
                        places.entry(block).or_default().push((row, group.id, position as u32));
                    }
                }
            }
        }
        places
    }

    /// Whose layers a block's bytes belong to.
    fn group_of(&self, pool: PoolId, dst: BlockId, src: BlockId, places: &Places) -> GroupId {
        let table = places.get(&src).and_then(|found| found.first());
        let key = self.store.prefix_index(pool).first_key(dst);
        table.map(|&(_, group, _)| group).or(key.map(|(key, _)| key.group)).unwrap_or(GroupId(0))
    }
}
