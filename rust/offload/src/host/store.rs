//! Storing: slots are taken, copied to, and then found.

use std::ops::Range;

use hybrid_blocks::{BlockId, EvictionOrder, Key, PoolId, Store};

use super::tier::HostTier;
use super::unit::{Path, Slots, UnitId};

/// Chunks that are stored, and evicted, together. Each key comes with the tokens that it stands
/// for.
#[derive(Clone, Copy, Debug)]
pub struct UnitContent<'a> {
    /// The unit from whose length this one continues; see [`HostTier::deepest`].
    pub parent: Option<UnitId>,
    /// Attention chunks after the parent's length, in order.
    pub path: &'a [(Key, u32)],
    /// States and window chunks at the unit's own length.
    pub end: &'a [(Key, u32)],
}

/// A chunk to copy into host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Name of the chunk.
    pub key: Key,
    /// Tokens that it stands for.
    pub num_tokens: u32,
    /// Pool of its slot.
    pub pool: PoolId,
    /// Slot of the chunk.
    pub slot: BlockId,
    /// Bytes of the slot within the region.
    pub bytes: Range<u64>,
}

/// A store under way. Its chunks are found only after [`HostTier::complete_store`].
#[derive(Debug)]
#[must_use = "slots stay taken until the store is completed"]
pub struct StoreTicket {
    unit: UnitId,
    /// Whether the unit was made for this store.
    is_new: bool,
    /// Chunks to copy, the unit's path first. Chunks that are there already are left out.
    pub placements: Vec<Placement>,
}

impl StoreTicket {
    /// The unit that is stored.
    pub fn unit(&self) -> UnitId {
        self.unit
    }
}

impl HostTier {
    /// Takes slots for what is not there yet and evicts units for them, lowest priority first. `None`, and
    /// nothing is evicted, if the unit does not fit beside what is pinned, or names a group that is not stored.
    pub fn prepare_store(&mut self, content: UnitContent<'_>) -> Option<StoreTicket> {
        let pinned = content.parent.filter(|&parent| self.units.pin(parent));
        let taken = self.take(content.path, content.end);
        let ticket = taken.map(|taken| {
            let unit = self.units.add(pinned, self.used_now(0.0));
            self.own(unit, taken, true)
        });
        if let Some(parent) = pinned {
            self.units.unpin(parent);
        }
        ticket
    }

    /// As [`HostTier::prepare_store`] for a unit that is there already: its path continues by
    /// `path`, and `end` is added to its end. `None` also if the unit is gone.
    pub fn extend_store(
        &mut self,
        unit: UnitId,
        path: &[(Key, u32)],
        end: &[(Key, u32)],
    ) -> Option<StoreTicket> {
        if !self.units.pin(unit) {
            return None;
        }
        let Some(taken) = self.take(path, end) else {
            self.units.unpin(unit);
            return None;
        };
        self.units.touch(unit, self.used_now(0.0));
        Some(self.own(unit, taken, false))
    }

    /// Keys that the last store took slots from.
    pub fn evicted(&mut self) -> &[Key] {
        self.store.evicted()
    }

    /// Gives slots to a unit that is pinned for this store.
    fn own(&mut self, unit: UnitId, taken: Taken, is_new: bool) -> StoreTicket {
        let Taken { path, end, placements } = taken;
        let is_led_to = !end.is_empty() || !placements.is_empty();
        self.house(unit, &path);
        self.units.attach(unit, path, end, self.used_now(self.left_behind));
        // The last slot leads to this unit even if another brought it in: a later turn resumes here.
        let last = self.units.get(unit).and_then(|unit| unit.path.last()).filter(|_| is_led_to);
        if let Some(&(_, (pool, slot))) = last {
            self.home[pool.index()][slot.index()] = Some(unit);
        }
        StoreTicket { unit, is_new, placements }
    }

    /// Makes a unit the home of slots that have none.
    fn house(&mut self, unit: UnitId, path: &[(u32, (PoolId, BlockId))]) {
        for &(_, (pool, slot)) in path {
            let home = &mut self.home[pool.index()][slot.index()];
            if home.is_none_or(|home| self.units.get(home).is_none()) {
                *home = Some(unit);
            }
        }
    }

    /// Gives a unit attention that is here already and on the way to it. `false` if the unit is gone.
    pub(super) fn share(&mut self, unit: UnitId, chunks: &[(Key, u32)]) -> bool {
        if self.units.get(unit).is_none() {
            return false;
        }
        let slots = chunks.iter().filter_map(|(key, num_tokens)| {
            let pool = self.geometry.pool_of(key.group.index())?;
            let slot = self.store.get(pool, key)?;
            self.store.touch(pool, slot).ok().map(|()| (*num_tokens, (pool, slot)))
        });
        let slots: Path = slots.collect();
        self.house(unit, &slots);
        self.units.put(unit, slots);
        true
    }

    /// A slot for each chunk: its own if it is there, else a new one.
    fn take(&mut self, path: &[(Key, u32)], end: &[(Key, u32)]) -> Option<Taken> {
        self.store.tick();
        self.store.evicted().clear();
        let all = || path.iter().chain(end);
        self.demand.fill(0);
        for (key, _) in all() {
            self.demand[self.geometry.pool_of(key.group.index())?.index()] += 1;
        }
        if !self.geometry.could_hold(&self.demand) {
            return None;
        }
        self.read_ahead(path);
        // Chunks that are there get an owner first, so that no eviction takes them.
        self.demand.fill(0);
        let mut slots: Slots = Vec::with_capacity(path.len() + end.len());
        for (key, _) in all() {
            let Some(pool) = self.geometry.pool_of(key.group.index()) else { continue };
            let held =
                self.store.get(pool, key).filter(|&slot| self.store.touch(pool, slot).is_ok());
            self.demand[pool.index()] += u64::from(held.is_none());
            slots.push((pool, held.unwrap_or(BlockId::NULL)));
        }
        let mut changes = Vec::new();
        while self.store.reserve(&self.demand, &mut self.reservation).is_err() {
            if !self.evict_more(&mut changes) {
                self.undo(changes);
                slots.retain(|(_, slot)| !slot.is_null());
                self.release(&slots);
                return None;
            }
        }
        let mut placements = Vec::with_capacity(self.demand.iter().sum::<u64>() as usize);
        for pool in (0..self.demand.len() as u32).map(PoolId) {
            self.fresh.clear();
            let (count, fresh) = (self.demand[pool.index()], &mut self.fresh);
            self.store.take(pool, count, None, &mut self.reservation, fresh);
            let mut fresh = self.fresh.iter();
            let entries = all().zip(&mut slots);
            for (&(key, num_tokens), (_, slot)) in
                entries.filter(|(_, (of, slot))| *of == pool && slot.is_null())
            {
                let Some(&new) = fresh.next() else { break };
                *slot = new;
                let bytes = self.geometry.bytes_of(pool, new);
                placements.push(Placement { key, num_tokens, pool, slot: new, bytes });
            }
        }
        self.note_evicted();
        let end = slots.split_off(path.len());
        let path = path.iter().map(|&(_, num_tokens)| num_tokens).zip(slots).collect();
        Some(Taken { path, end, placements })
    }

    /// Lets time pass by what the last store took slots from.
    fn note_evicted(&mut self) {
        let geometry = &self.geometry;
        let bytes =
            |key: &Key| geometry.pool_of(key.group.index()).map(|it| geometry.slot_bytes(it));
        let evicted: u64 = self.store.evicted().iter().filter_map(bytes).sum();
        self.lives += evicted as f64 / self.geometry.num_bytes() as f64;
    }

    /// Reads what look-ups of keys read first, so that they wait for memory once and not one by one.
    fn read_ahead(&self, keys: &[(Key, u32)]) {
        let read = |sum: u32, (key, _): &(Key, u32)| {
            let pool = self.geometry.pool_of(key.group.index()).unwrap_or_default();
            sum ^ self.store.read_ahead(pool, BlockId::NULL, key)
        };
        std::hint::black_box(keys.iter().fold(0, read));
    }

    /// Ends a store. If it `succeeded`, its chunks are found from now on; else its slots come free, or, where
    /// it extended a unit, with the unit.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is completed once")]
    pub fn complete_store(&mut self, ticket: StoreTicket, succeeded: bool) {
        self.units.unpin(ticket.unit);
        if succeeded {
            self.publish(&ticket.placements);
        } else if ticket.is_new {
            let slots = self.units.cancel(ticket.unit);
            self.release(&slots);
        }
    }

    /// Lets copied chunks be found.
    pub(super) fn publish(&mut self, placements: &[Placement]) {
        let mut rest = placements;
        while let Some(first) = rest.first() {
            let len = rest.iter().take_while(|it| it.pool == first.pool).count();
            let (run, others) = rest.split_at(len);
            let entries = run.iter().map(|it| (it.slot, it.key, it.num_tokens));
            self.store.insert_run(first.pool, None, entries);
            rest = others;
        }
    }
}

/// Slots of a path and an end, and those of them that are new.
struct Taken {
    path: Path,
    end: Slots,
    placements: Vec<Placement>,
}
