//! [`Units`]: the forest of units and the order in which they are evicted.

use std::collections::BTreeSet;

use super::unit::{Path, Slots, Unit, UnitId, Use};

/// A change of the forest by an eviction.
#[derive(Debug)]
pub(super) enum Change {
    /// A unit went.
    Unit(u32, Unit),
    /// A unit lost a child; its last use before.
    Parent(u32, Use),
    /// A unit lost its end.
    End(u32, Slots),
}

/// All units. Leaves are evicted, lowest priority first, and among them the ends that were left behind, by
/// the time when they were. Before any of them go the leaves that have no end, and after all of them those
/// behind which a request may still store.
#[derive(Debug, Default)]
pub(super) struct Units {
    all: Vec<Unit>,
    vacant: Vec<u32>,
    /// Unpinned leaves by priority, the two kinds below left out.
    leaves: BTreeSet<(u64, u32)>,
    /// Leaves behind which a request may still store, where [`Units::keep_held`] was called.
    held: BTreeSet<(u64, u32)>,
    keeps_held: bool,
    /// Leaves from which no request can resume.
    endless: BTreeSet<(u64, u32)>,
    /// Unpinned units whose end was left behind, by the time when it was.
    left_behind: BTreeSet<(u64, u32)>,
    /// Lives for which content of mean chance is kept beyond its age.
    mean_lives: f64,
}

impl Units {
    pub(super) fn get(&self, id: UnitId) -> Option<&Unit> {
        let unit = self.all.get(id.index as usize)?;
        (unit.is_alive && unit.generation == id.generation).then_some(unit)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len() - self.vacant.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Unit> {
        self.all.iter().filter(|unit| unit.is_alive)
    }

    /// A new unit without slots, pinned once.
    pub(super) fn add(&mut self, parent: Option<UnitId>, now: Use) -> UnitId {
        let parent = parent.filter(|&parent| self.get(parent).is_some()).map(|parent| parent.index);
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.all.push(Unit::default());
            self.all.len() as u32 - 1
        });
        let unit = &mut self.all[index as usize];
        *unit = Unit {
            generation: unit.generation.wrapping_add(1),
            is_alive: true,
            parent,
            num_pins: 1,
            last_use: now,
            ..Unit::default()
        };
        let id = UnitId { index, generation: unit.generation };
        if let Some(parent) = parent {
            self.change(parent, |parent| parent.num_children += 1);
        }
        id
    }

    /// Gives a unit more slots.
    pub(super) fn attach(&mut self, id: UnitId, path: Path, mut end: Slots, now: Use) {
        let Some(unit) = self.get(id) else { return };
        let (parent, is_first_end) = (unit.parent, !unit.had_end && !end.is_empty());
        self.change(id.index, |unit| {
            unit.had_end |= !end.is_empty();
            unit.put(path);
            unit.end.append(&mut end);
        });
        if is_first_end {
            self.continue_from(parent, now);
        }
    }

    /// Gives a unit more slots on the way to it.
    pub(super) fn put(&mut self, id: UnitId, path: Path) {
        if self.get(id).is_some() {
            self.change(id.index, |unit| unit.put(path));
        }
    }

    /// Counts an end behind the nearest one above it.
    fn continue_from(&mut self, mut next: Option<u32>, now: Use) {
        while let Some(index) = next {
            let unit = &self.all[index as usize];
            if unit.had_end {
                self.change(index, |unit| {
                    unit.num_continued += 1;
                    unit.continued = now;
                });
                return;
            }
            next = unit.parent;
        }
    }

    /// A request may store behind a unit, until it releases the hold.
    pub(super) fn hold(&mut self, id: UnitId) {
        if self.get(id).is_some() {
            self.change(id.index, |unit| unit.num_holders += 1);
        }
    }

    pub(super) fn release_hold(&mut self, id: UnitId) {
        if self.get(id).is_some() {
            self.change(id.index, |unit| unit.num_holders = unit.num_holders.saturating_sub(1));
        }
    }

    /// Leaves behind which a request may still store go after all others. To be called before any is.
    pub(super) fn keep_held(&mut self) {
        debug_assert!(self.all.is_empty());
        self.keeps_held = true;
    }

    pub(super) fn keeps_held(&self) -> bool {
        self.keeps_held
    }

    /// Changes a unit and puts it where it then belongs in the order of eviction.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Unit)) {
        let (place, before) = self.place(&self.all[index as usize]);
        change(&mut self.all[index as usize]);
        let (new_place, after) = self.place(&self.all[index as usize]);
        let (before, after) = ((before, index), (after, index));
        if (before, place) == (after, new_place) {
            return;
        }
        if let Some(order) = self.order(place) {
            order.remove(&before);
        }
        if let Some(order) = self.order(new_place) {
            order.insert(after);
        }
    }

    fn order(&mut self, place: Place) -> Option<&mut BTreeSet<(u64, u32)>> {
        match place {
            Place::Endless => Some(&mut self.endless),
            Place::Held => Some(&mut self.held),
            Place::Leaf => Some(&mut self.leaves),
            Place::LeftBehind => Some(&mut self.left_behind),
            Place::Kept => None,
        }
    }

    /// Orders all units again, by how much chances count from now on.
    pub(super) fn set_mean_lives(&mut self, lives: f64) {
        if self.mean_lives.total_cmp(&lives).is_eq() {
            return;
        }
        self.mean_lives = lives;
        for place in [Place::Endless, Place::Held, Place::Leaf, Place::LeftBehind] {
            self.order(place).into_iter().for_each(BTreeSet::clear);
        }
        for index in 0..self.all.len() as u32 {
            let (place, priority) = self.place(&self.all[index as usize]);
            if let Some(order) = self.order(place) {
                order.insert((priority, index));
            }
        }
    }

    /// Where a unit stands, and since when.
    fn place(&self, unit: &Unit) -> (Place, u64) {
        let place = if !unit.is_alive || unit.num_pins > 0 {
            Place::Kept
        } else if unit.is_endless() {
            Place::Endless
        } else if unit.num_children == 0 && unit.num_holders > 0 && self.keeps_held {
            Place::Held
        } else if unit.num_children == 0 {
            Place::Leaf
        } else if unit.is_left_behind() {
            Place::LeftBehind
        } else {
            Place::Kept
        };
        let is_left = place == Place::LeftBehind;
        let since = if is_left { unit.continued } else { unit.last_use };
        (place, since.priority(self.mean_lives))
    }

    /// Protects a unit from eviction, or says that it is gone. Its ancestors are safe while it is.
    pub(super) fn pin(&mut self, id: UnitId) -> bool {
        let is_there = self.get(id).is_some();
        if is_there {
            self.change(id.index, |unit| unit.num_pins += 1);
        }
        is_there
    }

    pub(super) fn unpin(&mut self, id: UnitId) {
        if self.get(id).is_some() {
            self.change(id.index, |unit| unit.num_pins = unit.num_pins.saturating_sub(1));
        }
    }

    /// A unit is used, unless its last use gives it a higher priority.
    pub(super) fn touch(&mut self, id: UnitId, now: Use) {
        let mean_lives = self.mean_lives;
        if self.get(id).is_some() {
            self.change(id.index, |unit| unit.last_use = now.higher(unit.last_use, mean_lives));
        }
    }

    /// Takes the slots that are evicted next out of their unit; `None` if all units are pinned. Notes how to
    /// undo it.
    pub(super) fn evict(&mut self, changes: &mut Vec<Change>) -> Option<Slots> {
        if let Some(&(_, index)) = self.endless.first() {
            return Some(self.remove(index, changes));
        }
        if let Some(index) = self.end_to_evict() {
            let mut slots = Vec::new();
            self.change(index, |unit| slots = std::mem::take(&mut unit.end));
            changes.push(Change::End(index, slots.clone()));
            return Some(slots);
        }
        let &(_, index) = self.leaves.first().or_else(|| self.held.first())?;
        Some(self.remove(index, changes))
    }

    /// Undoes the latest eviction that is not yet undone, change by change from the last.
    pub(super) fn undo(&mut self, change: Change) {
        match change {
            Change::Unit(index, unit) => {
                let vacant = self.vacant.pop();
                debug_assert_eq!(vacant, Some(index));
                self.change(index, |it| *it = unit);
            }
            Change::Parent(index, last_use) => self.change(index, |unit| {
                unit.num_children += 1;
                unit.last_use = last_use;
            }),
            Change::End(index, end) => self.change(index, |unit| unit.end = end),
        }
    }

    /// The unit whose end was left behind longest, if that is longer ago than the last use of any leaf.
    fn end_to_evict(&self) -> Option<u32> {
        let end = self.left_behind.first()?;
        self.leaves.first().is_none_or(|leaf| end <= leaf).then_some(end.1)
    }

    /// Takes a leaf out, and the units above it that no other unit needs.
    fn remove(&mut self, index: u32, changes: &mut Vec<Change>) -> Slots {
        let mut slots = Vec::new();
        let mut next = Some(index);
        while let Some(index) = next {
            let mut removed = Unit::default();
            self.change(index, |unit| {
                let gone = Unit { generation: unit.generation, ..Unit::default() };
                removed = std::mem::replace(unit, gone);
            });
            // Ends first and paths backwards, so that shorter prefixes stay whole for longer.
            slots.extend_from_slice(&removed.end);
            slots.extend(removed.path.iter().rev().map(|&(_, slot)| slot));
            let (parent, last_use) = (removed.parent, removed.last_use);
            let mean_lives = self.mean_lives;
            changes.push(Change::Unit(index, removed));
            self.vacant.push(index);
            next = parent.filter(|&parent| {
                changes.push(Change::Parent(parent, self.all[parent as usize].last_use));
                self.change(parent, |parent| {
                    parent.num_children -= 1;
                    parent.last_use = parent.last_use.higher(last_use, mean_lives);
                });
                let parent = &self.all[parent as usize];
                parent.is_dead() && parent.num_pins == 0
            });
        }
        slots
    }

    /// Removes a unit that has no children and that no transfer uses.
    pub(super) fn cancel(&mut self, id: UnitId) -> Slots {
        if self.get(id).is_some_and(|unit| unit.num_children == 0 && unit.num_pins == 0) {
            self.remove(id.index, &mut Vec::new())
        } else {
            Vec::new()
        }
    }
}

/// Where a unit stands in the order of eviction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Endless,
    Leaf,
    Held,
    LeftBehind,
    Kept,
}
