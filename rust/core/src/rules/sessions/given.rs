//! [`Given`]: the priorities that a session gave what its last request left behind.

use super::ends::SessionEnd;
use super::hint::Hint;
use crate::ids::{BlockId, PoolId};
use crate::store::{EvictionOrder, Store};

/// Blocks that have one of them are the session's own: nobody else is known to need them.
#[derive(Debug)]
pub(crate) struct Given {
    /// Ascending, with 0 for blocks that have none yet.
    priorities: Vec<u64>,
    /// Whether a client said something of the session.
    is_said: bool,
}

impl Given {
    /// By the last request of a session, if that is remembered, before one of which `hint` is said.
    pub(crate) fn new(end: Option<&SessionEnd>, hint: Hint) -> Self {
        let left = end.into_iter().flat_map(|end| &end.left);
        let mut priorities: Vec<u64> = left.map(|it| it.priority).chain([0]).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let hints = end.map(|end| end.class.hint()).into_iter().chain([hint]);
        Self { priorities, is_said: hints.into_iter().any(|it| it != Hint::None) }
    }

    /// The session's own among blocks. Where something is said of it, they have no priority any more: the last word
    /// counts.
    pub(crate) fn take_own<S: Store>(
        &self,
        store: &mut S,
        pool: PoolId,
        blocks: &[BlockId],
    ) -> Vec<BlockId> {
        let mut own = Vec::new();
        for &block in blocks.iter().filter(|block| !block.is_null()) {
            if self.priorities.binary_search(&store.priority(pool, block)).is_ok() {
                own.push(block);
                if self.is_said {
                    store.set_priority(pool, block, 0);
                }
            }
        }
        own
    }
}
