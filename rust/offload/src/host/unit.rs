//! [`Unit`]: what is evicted together.

use std::fmt;

use hybrid_blocks::{BlockId, PoolId};

/// A unit, as long as it lives. The id of an evicted one names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl fmt::Debug for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitId({}.{})", self.index, self.generation)
    }
}

/// Slots of one pool.
pub(super) type Slots = Vec<(PoolId, BlockId)>;

/// Slots of attention with the tokens that each stands for, shortest first.
pub(super) type Path = Vec<(u32, (PoolId, BlockId))>;

/// A length at which a request can go on, and what only the way from its parent's length to it needs.
///
/// Units form a forest: a unit's attention starts where its parent's ends. A parent outlives its children,
/// so all that a unit needs is there while it is.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) generation: u32,
    pub(super) is_alive: bool,
    pub(super) parent: Option<u32>,
    pub(super) num_children: u32,
    /// Units over its life that have an end, with none between them and this one's.
    pub(super) num_continued: u32,
    /// When the first of them was stored.
    pub(super) continued_at: u64,
    /// Requests that may store behind it.
    pub(super) num_holders: u32,
    /// Transfers that read or write its slots.
    pub(super) num_pins: u32,
    /// The lowest is evicted first.
    pub(super) priority: u64,
    /// Attention from the parent's length on: children need it too.
    pub(super) path: Path,
    /// States and windows at the unit's own length: only who goes on from there needs them.
    pub(super) end: Slots,
    /// Whether it ever had an `end`.
    pub(super) had_end: bool,
}

impl Unit {
    /// Adds to the path, whose order is that of tokens, whenever a chunk comes.
    pub(super) fn put(&mut self, path: Path) {
        let last = self.path.last().map_or(0, |&(num_tokens, _)| num_tokens);
        let is_late = path.first().is_some_and(|&(num_tokens, _)| num_tokens < last);
        self.path.extend(path);
        if is_late {
            self.path.sort_by_key(|&(num_tokens, _)| num_tokens);
        }
    }

    /// Whether nothing can be restored from it: it has no end any more, and nobody below it needs its
    /// attention.
    pub(super) fn is_dead(&self) -> bool {
        self.num_children == 0 && self.had_end && self.end.is_empty()
    }

    /// Whether nobody can go on from it and nobody will make that possible: the attention of an answer of
    /// which no state was kept.
    pub(super) fn is_endless(&self) -> bool {
        self.num_children == 0 && !self.had_end && self.num_holders == 0
    }

    /// Whether its end may go while its attention is needed: exactly one request went on from it, so the next
    /// one will mostly go on from the child.
    pub(super) fn is_left_behind(&self) -> bool {
        self.num_children == 1 && self.num_continued == 1 && !self.end.is_empty()
    }
}
