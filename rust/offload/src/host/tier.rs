//! [`HostTier`]: which chunk lies where in host memory, and what is evicted for it.

use std::ops::Range;

use hybrid_blocks::{BlockId, EvictionOrder, Key, PoolId, Reservation, SlabStore, Store};

use super::geometry::HostGeometry;
use super::unit::{UnitId, Use};
use super::units::Units;
use crate::error::Error;
use crate::plan::{Load, Previous, Tier};

/// Bookkeeping of a region of host memory. It touches none of its bytes.
#[derive(Debug)]
pub struct HostTier {
    pub(super) geometry: HostGeometry,
    pub(super) store: SlabStore,
    pub(super) units: Units,
    /// The unit that brought a path's slot in, by pool and slot.
    pub(super) home: Vec<Vec<Option<UnitId>>>,
    /// How often as much as the region holds was evicted.
    pub(super) lives: f64,
    /// The chance of a state that was left behind, over the mean chance.
    pub(super) left_behind: f64,
    /// Reused between calls.
    pub(super) demand: Vec<u64>,
    pub(super) reservation: Reservation,
    pub(super) fresh: Vec<BlockId>,
}

impl HostTier {
    /// An empty tier.
    ///
    /// # Errors
    /// As [`SlabStore::new`].
    pub fn new(geometry: HostGeometry) -> Result<Self, Error> {
        // One slab more: the first is the null block's and has no bytes in the region.
        let num_slabs = geometry.num_slabs() + 1;
        let per_slab = geometry.slots_per_slab();
        Ok(Self {
            store: SlabStore::new(num_slabs, &per_slab)?,
            units: Units::default(),
            home: per_slab.iter().map(|&n| vec![None; (n * num_slabs) as usize]).collect(),
            lives: 0.0,
            left_behind: 0.0,
            demand: vec![0; per_slab.len()],
            reservation: Reservation::default(),
            fresh: Vec::new(),
            geometry,
        })
    }

    /// How the region is cut.
    pub fn geometry(&self) -> &HostGeometry {
        &self.geometry
    }

    /// Whether a unit was not evicted yet.
    pub(super) fn is_there(&self, unit: UnitId) -> bool {
        self.units.get(unit).is_some()
    }

    /// Units that can be restored or are being stored.
    pub fn num_units(&self) -> usize {
        self.units.len()
    }

    /// Slots of a pool that units or transfers need.
    pub fn num_live_slots(&self, pool: PoolId) -> u32 {
        self.store.pool(pool).num_live()
    }

    /// Slots of a pool whose chunks can be found, or are needed by units or transfers. Those that no unit
    /// needs any more are found until others are stored over them.
    pub fn num_held_slots(&self, pool: PoolId) -> u32 {
        let blocks = self.store.pool(pool);
        blocks.num_live() + blocks.num_cached()
    }

    /// Bytes of the slots that units or transfers need.
    pub fn num_live_bytes(&self) -> u64 {
        let pools = (0..self.store.num_pools()).map(PoolId);
        pools
            .map(|pool| u64::from(self.num_live_slots(pool)) * self.geometry.slot_bytes(pool))
            .sum()
    }

    /// The deepest unit on the way that `keys` name, and how many of them it covers. `keys` are the
    /// attention chunks of the group that comes last in each unit's path, from the start of a prompt.
    pub fn deepest(&self, keys: &[Key]) -> Option<(UnitId, usize)> {
        keys.iter().enumerate().rev().find_map(|(at, key)| {
            let pool = self.geometry.pool_of(key.group.index())?;
            let slot = self.store.get(pool, key)?;
            let home = self.home[pool.index()][slot.index()]?;
            let unit = self.units.get(home)?;
            let is_last = unit.path.last().is_some_and(|&(_, last)| last == (pool, slot));
            is_last.then_some((home, at + 1))
        })
    }

    /// Drops all content.
    ///
    /// # Errors
    /// As [`HostTier::new`].
    pub fn reset(&mut self) -> Result<(), Error> {
        let keeps_held = self.units.keeps_held();
        *self = Self::new(self.geometry.clone())?;
        if keeps_held {
            self.keep_running();
        }
        Ok(())
    }

    /// Lets what a running request stored go after all else, as it is to be written elsewhere once the request ends.
    /// To be called while the tier is empty.
    pub fn keep_running(&mut self) {
        self.units.keep_held();
    }

    /// Keeps content of mean chance to be used again for `lives` beyond its age from now on. With
    /// 0, the initial value, age alone counts. By age, content stays for one life: the time in
    /// which as much is evicted as the region holds. `left_behind` is the chance that a second
    /// request resumes from where one did, over the mean chance.
    pub fn set_mean_lives(&mut self, lives: f64, left_behind: f64) {
        self.units.set_mean_lives(lives);
        self.left_behind = left_behind;
    }

    /// Notes that a unit is used now. `chance` is that of a next time, over the mean chance.
    pub fn touch(&mut self, unit: UnitId, chance: f64) {
        self.units.touch(unit, self.used_now(chance));
    }

    /// A use now, with the chance of a next one over the mean chance.
    pub(super) fn used_now(&self, chance: f64) -> Use {
        Use::new(self.lives, self.store.now(), chance)
    }

    /// Notes that a request may store behind a unit, until [`HostTier::release_hold`]. Its attention does
    /// not count as the rest of an answer from which no request can resume.
    pub fn hold(&mut self, unit: UnitId) {
        self.units.hold(unit);
    }

    /// Ends what [`HostTier::hold`] noted.
    pub fn release_hold(&mut self, unit: UnitId) {
        self.units.release_hold(unit);
    }

    /// Protects chunks of a plan from eviction until [`HostTier::unpin`]. `false`, and nothing is
    /// protected, if one of them has been evicted since the plan was made.
    #[must_use]
    pub fn pin(&mut self, loads: &[Load]) -> bool {
        for (at, load) in loads.iter().enumerate() {
            let pool = self.geometry.pool_of(load.key.group.index());
            let is_there = pool.is_some_and(|pool| {
                self.store.prefix_index(pool).contains(&load.key, load.slot)
                    && self.store.touch(pool, load.slot).is_ok()
            });
            if !is_there {
                self.unpin(&loads[..at]);
                return false;
            }
        }
        true
    }

    /// Ends the protection of chunks that [`HostTier::pin`] protected.
    pub fn unpin(&mut self, loads: &[Load]) {
        let slots = loads
            .iter()
            .filter_map(|load| Some((self.geometry.pool_of(load.key.group.index())?, load.slot)));
        self.release(&slots.collect::<Vec<_>>());
    }

    /// Bytes of a unit's states and windows; 0 if it is gone.
    pub(super) fn end_bytes(&self, unit: UnitId) -> u64 {
        let end = self.units.get(unit).into_iter().flat_map(|unit| &unit.end);
        end.map(|&(pool, _)| self.geometry.slot_bytes(pool)).sum()
    }

    /// The unit that brought a chunk in, if it is still there.
    pub(super) fn home_of(&self, load: &Load) -> Option<UnitId> {
        let pool = self.geometry.pool_of(load.key.group.index())?;
        self.home[pool.index()][load.slot.index()].filter(|&unit| self.units.get(unit).is_some())
    }

    /// The bytes of a load's slot within the region.
    pub fn bytes_of(&self, load: &Load) -> Option<Range<u64>> {
        let pool = self.geometry.pool_of(load.key.group.index())?;
        Some(self.geometry.bytes_of(pool, load.slot))
    }

    /// Takes one owner from each slot, one run of a pool at a time.
    pub(super) fn release(&mut self, slots: &[(PoolId, BlockId)]) {
        let mut rest = slots;
        while let Some(&(pool, _)) = rest.first() {
            let len = rest.iter().take_while(|(of, _)| *of == pool).count();
            let (run, others) = rest.split_at(len);
            let freed = self.store.free(pool, run.iter().map(|&(_, slot)| slot));
            debug_assert!(freed.is_ok(), "{freed:?}");
            rest = others;
        }
    }

    /// Checks that slots, owners and units agree.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.store.check_integrity()?;
        for unit in self.units.iter() {
            if let Some(slot) = unit
                .path
                .iter()
                .map(|(_, slot)| slot)
                .chain(&unit.end)
                .find(|(pool, slot)| self.store.pool(*pool).ref_count(*slot) == 0)
            {
                return Err(format!("slot {slot:?} of a unit has no owner"));
            }
        }
        Ok(())
    }
}

impl Tier for HostTier {
    #[inline]
    fn find(&self, key: &Key, previous: Previous) -> Option<BlockId> {
        let pool = self.geometry.pool_of(key.group.index())?;
        self.store.prefix_index(pool).get_after(previous, key)
    }

    /// Chunks behind one that is not here are mostly not here either. So behind the first such one
    /// all are looked at together first: none of them waits for memory then until the one before is
    /// done.
    fn find_row(&self, row: &mut [Load], tier: u8, previous: &mut Previous) -> usize {
        let group = row.first().map(|load| load.key.group.index());
        let Some(pool) = group.and_then(|group| self.geometry.pool_of(group)) else { return 0 };
        let index = self.store.prefix_index(pool);
        let mut num_found = 0;
        for row in row.chunks_mut(u64::BITS as usize) {
            // One bit a chunk: whether it may be here.
            let mut possible = None;
            for at in 0..row.len() {
                let Load { key, tier: known, .. } = row[at];
                if known != Load::NOWHERE || possible.is_some_and(|it: u64| it >> at & 1 == 0) {
                    continue;
                }
                if let Some(slot) = index.get_after(*previous, &key) {
                    previous.step(slot);
                    (row[at].tier, row[at].slot) = (tier, slot);
                    num_found += 1;
                } else if possible.is_none() {
                    let bits = row.iter().rev();
                    let add = |bits, load: &Load| bits << 1 | u64::from(index.may_hold(&load.key));
                    possible = Some(bits.fold(0, add));
                }
            }
        }
        num_found
    }
}
