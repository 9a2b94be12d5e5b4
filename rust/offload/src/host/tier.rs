//! [`HostTier`]: which chunk lies where in host memory, and what is evicted for it.

use std::ops::Range;

use hybrid_blocks::{BlockId, Key, PoolId, Reservation, SlabStore, Store};

use super::geometry::HostGeometry;
use super::unit::{Slots, UnitId};
use super::units::Units;
use crate::error::Error;
use crate::plan::{Load, Previous, Tier};

/// What is stored, and evicted, together. Each key comes with the tokens that it stands for.
#[derive(Clone, Copy, Debug)]
pub struct UnitContent<'a> {
    /// The unit whose length this one goes on from; see [`HostTier::deepest`].
    pub parent: Option<UnitId>,
    /// Attention chunks after the parent's length, in order.
    pub path: &'a [(Key, u32)],
    /// States and window chunks at the unit's own length.
    pub end: &'a [(Key, u32)],
}

/// A chunk to copy into host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its name.
    pub key: Key,
    /// Tokens that it stands for.
    pub num_tokens: u32,
    /// Pool of its slot.
    pub pool: PoolId,
    /// Its slot.
    pub slot: BlockId,
    /// Bytes of the slot within the region.
    pub bytes: Range<u64>,
}

/// A store under way. Its chunks are found only after [`HostTier::complete_store`].
#[derive(Debug)]
#[must_use = "slots stay taken until the store is completed"]
pub struct StoreTicket {
    unit: UnitId,
    /// Chunks to copy, the unit's path first. Chunks that are there already are left out.
    pub placements: Vec<Placement>,
}

impl StoreTicket {
    /// The unit that is stored.
    #[must_use]
    pub fn unit(&self) -> UnitId {
        self.unit
    }
}

/// Bookkeeping of a region of host memory. It touches none of its bytes.
#[derive(Debug)]
pub struct HostTier {
    geometry: HostGeometry,
    store: SlabStore,
    units: Units,
    /// The unit that brought a path's slot in, by pool and slot.
    home: Vec<Vec<Option<UnitId>>>,
    /// Reused between calls.
    demand: Vec<u64>,
    reservation: Reservation,
    fresh: Vec<BlockId>,
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
            demand: vec![0; per_slab.len()],
            reservation: Reservation::default(),
            fresh: Vec::new(),
            geometry,
        })
    }

    /// How the region is cut.
    #[must_use]
    pub fn geometry(&self) -> &HostGeometry {
        &self.geometry
    }

    /// Units that can be restored or are being stored.
    #[must_use]
    pub fn num_units(&self) -> usize {
        self.units.len()
    }

    /// Slots of a pool that units or transfers need.
    #[must_use]
    pub fn num_live_slots(&self, pool: PoolId) -> u32 {
        self.store.pool(pool).num_live()
    }

    /// Slots of a pool whose chunks can be found, or are needed by units or transfers. Those that no unit
    /// needs any more are found until others are stored over them.
    #[must_use]
    pub fn num_held_slots(&self, pool: PoolId) -> u32 {
        let blocks = self.store.pool(pool);
        blocks.num_live() + blocks.num_cached()
    }

    /// Bytes of the slots that units or transfers need.
    #[must_use]
    pub fn num_live_bytes(&self) -> u64 {
        let pools = (0..self.store.num_pools()).map(PoolId);
        pools
            .map(|pool| u64::from(self.num_live_slots(pool)) * self.geometry.slot_bytes(pool))
            .sum()
    }

    /// The deepest unit on the way that `keys` name, and how many of them it covers. `keys` are the
    /// attention chunks of the group that comes last in each unit's path, from the start of a prompt.
    #[must_use]
    pub fn deepest(&self, keys: &[Key]) -> Option<(UnitId, usize)> {
        keys.iter().enumerate().rev().find_map(|(at, key)| {
            let pool = self.geometry.pool_of(key.group.index())?;
            let slot = self.store.get(pool, key)?;
            let home = self.home[pool.index()][slot.index()]?;
            let unit = self.units.get(home)?;
            (unit.path.last() == Some(&(pool, slot))).then_some((home, at + 1))
        })
    }

    /// Takes slots for what is not there yet and evicts units for them, lowest priority first. `None` if
    /// the unit does not fit beside what is pinned, or names a group that is not stored; then nothing was
    /// evicted in vain but what was needed least.
    pub fn prepare_store(&mut self, content: UnitContent<'_>) -> Option<StoreTicket> {
        self.store.tick();
        let all = || content.path.iter().chain(content.end);
        if all().any(|(key, _)| self.geometry.pool_of(key.group.index()).is_none()) {
            return None;
        }
        let pinned = content.parent.filter(|&parent| self.units.pin(parent));
        self.read_ahead(content.path);
        // What is there gets an owner first, so that no eviction takes it.
        self.demand.fill(0);
        let mut slots: Slots = Vec::with_capacity(content.path.len() + content.end.len());
        for (key, _) in content.path.iter().chain(content.end) {
            let Some(pool) = self.geometry.pool_of(key.group.index()) else { continue };
            let held =
                self.store.get(pool, key).filter(|&slot| self.store.touch(pool, slot).is_ok());
            self.demand[pool.index()] += u64::from(held.is_none());
            slots.push((pool, held.unwrap_or(BlockId::NULL)));
        }
        while self.store.reserve(&self.demand, &mut self.reservation).is_err() {
            if !self.evict_one() {
                slots.retain(|(_, slot)| !slot.is_null());
                self.release(&slots);
                if let Some(parent) = pinned {
                    self.units.unpin(parent);
                }
                return None;
            }
        }
        let mut placements = Vec::with_capacity(self.demand.iter().sum::<u64>() as usize);
        for pool in (0..self.demand.len() as u32).map(PoolId) {
            self.fresh.clear();
            let (count, fresh) = (self.demand[pool.index()], &mut self.fresh);
            self.store.take(pool, count, None, &mut self.reservation, fresh);
            let mut fresh = self.fresh.iter();
            let entries = content.path.iter().chain(content.end).zip(&mut slots);
            for (&(key, num_tokens), (_, slot)) in
                entries.filter(|(_, (of, slot))| *of == pool && slot.is_null())
            {
                let Some(&new) = fresh.next() else { break };
                *slot = new;
                let bytes = self.geometry.bytes_of(pool, new);
                placements.push(Placement { key, num_tokens, pool, slot: new, bytes });
            }
        }
        self.store.evicted().clear();
        let end = slots.split_off(content.path.len());
        let path = slots;
        let is_new = |slot: &(PoolId, BlockId)| {
            self.home[slot.0.index()][slot.1.index()]
                .is_none_or(|home| self.units.get(home).is_none())
        };
        let homeless: Vec<_> = path.iter().filter(|slot| is_new(slot)).copied().collect();
        let last = path.last().copied();
        let unit = self.units.add(pinned, path, end, self.store.now());
        // The last slot leads to this unit even if another brought it in: a later turn goes on from here.
        for (pool, slot) in homeless.into_iter().chain(last) {
            self.home[pool.index()][slot.index()] = Some(unit);
        }
        if let Some(parent) = pinned {
            self.units.unpin(parent);
        }
        Some(StoreTicket { unit, placements })
    }

    /// Reads what look-ups of keys read first, so that they wait for memory once and not one by one.
    fn read_ahead(&self, keys: &[(Key, u32)]) {
        let read = |sum: u32, (key, _): &(Key, u32)| {
            let pool = self.geometry.pool_of(key.group.index()).unwrap_or_default();
            sum ^ self.store.read_ahead(pool, BlockId::NULL, key)
        };
        std::hint::black_box(keys.iter().fold(0, read));
    }

    /// Ends a store. If it `succeeded`, its chunks are found from now on; else its slots come free.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is completed once")]
    pub fn complete_store(&mut self, ticket: StoreTicket, succeeded: bool) {
        self.units.unpin(ticket.unit);
        if !succeeded {
            let slots = self.units.cancel(ticket.unit);
            return self.release(&slots);
        }
        let mut rest = &ticket.placements[..];
        while let Some(first) = rest.first() {
            let len = rest.iter().take_while(|it| it.pool == first.pool).count();
            let (run, others) = rest.split_at(len);
            let entries = run.iter().map(|it| (it.slot, it.key, it.num_tokens));
            self.store.insert_run(first.pool, None, entries);
            rest = others;
        }
    }

    /// Notes that a request went on from a unit: it is evicted `bonus` stores later than its age says.
    pub fn touch(&mut self, unit: UnitId, bonus: u64) {
        self.units.raise(unit, self.store.now() + bonus);
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

    /// The bytes of a load's slot within the region.
    #[must_use]
    pub fn bytes_of(&self, load: &Load) -> Option<Range<u64>> {
        let pool = self.geometry.pool_of(load.key.group.index())?;
        Some(self.geometry.bytes_of(pool, load.slot))
    }

    /// Evicts what is needed least: an end that was left behind, or the unit of the lowest priority. Its
    /// slots can still be found until others are stored over them. `false` if everything is pinned.
    pub fn evict_one(&mut self) -> bool {
        let slots = self.units.evict();
        let is_some = slots.is_some();
        self.release(&slots.unwrap_or_default());
        is_some
    }

    /// Takes one owner from each slot, one run of a pool at a time.
    fn release(&mut self, slots: &[(PoolId, BlockId)]) {
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
    fn find(&self, key: &Key, previous: Previous) -> Option<BlockId> {
        let pool = self.geometry.pool_of(key.group.index())?;
        self.store.prefix_index(pool).get_after(previous.cursor(), key)
    }
}
