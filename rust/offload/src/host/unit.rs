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

/// Parts of a life that a priority tells apart.
const PARTS_A_LIFE: f64 = 65_536.0;

/// Bits of a priority below the parts of a life: stores, for what is of the same part.
const STORE_BITS: u32 = 32;

/// When something was used, and how likely it is to be used again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    /// In lives, and in stores or whatever else tells uses of one moment apart.
    at: u64,
    /// Over the mean chance.
    chance: f64,
}

#[expect(clippy::cast_sign_loss, reason = "neither time nor chance is negative")]
fn parts(lives: f64) -> u64 {
    ((lives * PARTS_A_LIFE) as u64) << STORE_BITS
}

impl Use {
    /// Until something is evicted, only stores count as time.
    pub(super) fn new(lives: f64, num_stores: u64, chance: f64) -> Self {
        Self { at: parts(lives) | (num_stores & ((1 << STORE_BITS) - 1)), chance }
    }

    /// The lowest is evicted first. Content of mean chance is kept for `mean_lives` beyond its age.
    pub(super) fn priority(self, mean_lives: f64) -> u64 {
        self.at + parts(mean_lives * self.chance)
    }

    /// The one of the higher priority.
    pub(super) fn higher(self, other: Self, mean_lives: f64) -> Self {
        let priority = |it: Self| it.priority(mean_lives);
        if priority(other) > priority(self) { other } else { self }
    }
}

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
    pub(super) continued: Use,
    /// Requests that may store behind it.
    pub(super) num_holders: u32,
    /// Transfers that read or write its slots.
    pub(super) num_pins: u32,
    pub(super) last_use: Use,
    /// Attention from the parent's length on: children need it too.
    pub(super) path: Path,
    /// States and windows at the unit's own length: only a request that resumes from there needs
    /// them.
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

    /// Whether nothing can be restored from it: it lost its end, and no unit below it needs its
    /// attention.
    pub(super) fn is_dead(&self) -> bool {
        self.num_children == 0 && self.had_end && self.end.is_empty()
    }

    /// Whether no request can resume from it, and none will make that possible: the attention of an
    /// answer without a kept state.
    pub(super) fn is_endless(&self) -> bool {
        self.num_children == 0 && !self.had_end && self.num_holders == 0
    }

    /// Whether its end may go while its attention is needed: exactly one request resumed from it,
    /// so the next one will mostly resume from the child.
    pub(super) fn is_left_behind(&self) -> bool {
        self.num_children == 1 && self.num_continued == 1 && !self.end.is_empty()
    }
}
