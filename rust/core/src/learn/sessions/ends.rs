//! [`SessionEnds`]: what the last request of each session left behind. A later hint for the session
//! still applies to it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::worth::WorthClass;
use crate::ids::{BlockId, PoolId};

/// A cached block that no other conversation is known to need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LeftBlock {
    pub(crate) pool: PoolId,
    pub(crate) block: BlockId,
    /// Worth next to content of mean worth, as when the request ended.
    pub(crate) worth: f64,
    /// The priority that it got. While it has it, no other request took or used the block.
    pub(crate) priority: u64,
}

/// The end of a session's last request.
#[derive(Clone, Debug)]
pub(crate) struct SessionEnd {
    pub(crate) class: WorthClass,
    /// When it was, in lives and in ticks.
    pub(crate) at: (f64, u64),
    pub(crate) left: Vec<LeftBlock>,
}

/// The ends of sessions, of the latest ones only. They guide what is kept: one that was forgotten costs a
/// hit, no more.
#[derive(Clone, Debug)]
pub(crate) struct SessionEnds {
    of: FxHashMap<u64, (u64, SessionEnd)>,
    /// Sessions by when they ended.
    by_time: BTreeMap<u64, u64>,
    num_ends: u64,
    num_blocks: u64,
    /// Most blocks that are remembered, whatever session left them.
    most_blocks: u64,
}

/// Sessions that are remembered, at most.
const MOST_SESSIONS: usize = 1 << 14;

impl SessionEnds {
    pub(crate) fn new(most_blocks: u64) -> Self {
        Self {
            of: FxHashMap::default(),
            by_time: BTreeMap::new(),
            num_ends: 0,
            num_blocks: 0,
            most_blocks,
        }
    }

    /// Remembers the end of a session in place of an earlier one. The sessions that ended first are
    /// forgotten if there are too many.
    pub(crate) fn insert(&mut self, session: u64, end: SessionEnd) {
        self.remove(session);
        self.num_ends += 1;
        self.num_blocks += end.left.len() as u64;
        self.by_time.insert(self.num_ends, session);
        self.of.insert(session, (self.num_ends, end));
        while self.num_blocks > self.most_blocks || self.of.len() > MOST_SESSIONS {
            let Some((_, &first)) = self.by_time.first_key_value() else { break };
            self.remove(first);
        }
    }

    pub(crate) fn get_mut(&mut self, session: u64) -> Option<&mut SessionEnd> {
        self.of.get_mut(&session).map(|(_, end)| end)
    }

    pub(crate) fn remove(&mut self, session: u64) -> Option<SessionEnd> {
        let (time, end) = self.of.remove(&session)?;
        self.by_time.remove(&time);
        self.num_blocks -= end.left.len() as u64;
        Some(end)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.most_blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(num_blocks: u32) -> SessionEnd {
        let left =
            |block| LeftBlock { pool: PoolId(0), block: BlockId(block), worth: 1.0, priority: 1 };
        SessionEnd {
            class: WorthClass::default(),
            at: (0.0, 0),
            left: (0..num_blocks).map(left).collect(),
        }
    }

    #[test]
    fn the_sessions_that_ended_first_are_forgotten_first() {
        let mut ends = SessionEnds::new(10);
        ends.insert(1, end(4));
        ends.insert(2, end(4));
        ends.insert(1, end(5));
        ends.insert(3, end(3));
        assert!(ends.get_mut(2).is_none());
        assert_eq!(ends.get_mut(1).unwrap().left.len(), 5);
        ends.insert(4, end(11));
        assert!([1, 2, 3, 4].iter().all(|&session| ends.get_mut(session).is_none()));
        assert_eq!((ends.num_blocks, ends.by_time.len()), (0, 0));
        ends.insert(5, end(10));
        assert!(ends.get_mut(5).is_some());
    }

    #[test]
    fn sessions_without_content_are_bounded_too() {
        let mut ends = SessionEnds::new(1);
        (0..MOST_SESSIONS as u64 + 3).for_each(|session| ends.insert(session, end(0)));
        assert_eq!(ends.of.len(), MOST_SESSIONS);
        assert!(ends.get_mut(2).is_none() && ends.get_mut(3).is_some());
    }
}
