//! [`Given`]: the priorities that a session gave what its last request left behind.

use super::ends::SessionEnd;
use super::hint::Hint;
use crate::ids::{BlockId, PoolId};
use crate::store::{EvictionOrder, Store};

/// Blocks that have one of them are taken to be the session's own: no other request is known to
/// need them. Another session may have given the same priority in the same step; then the last word
/// of one counts for both.
#[derive(Debug)]
pub(crate) struct Given {
    /// Ascending, with 0 for blocks that have none yet.
    priorities: Vec<u64>,
    /// Whether a client said something of the session.
    is_said: bool,
}

impl Given {
    /// By the last request of a session, if that is remembered, before one with `hint`.
    pub(crate) fn new(end: Option<&SessionEnd>, hint: Hint) -> Self {
        let left = end.into_iter().flat_map(|end| &end.left);
        let mut priorities: Vec<u64> = left.map(|it| it.priority).chain([0]).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let hints = end.map(|end| end.class.hint()).into_iter().chain([hint]);
        Self { priorities, is_said: hints.into_iter().any(|it| it != Hint::None) }
    }

    /// The session's own among blocks. Once a hint names the session, they have no priority any
    /// more: the last word counts. Where nothing ever was, they keep it, as if the session had no
    /// name.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::sessions::{LeftBlock, WorthClass};
    use crate::store::SlabStore;

    const POOL: PoolId = PoolId(0);

    /// Three blocks: one without a priority, one that has what the session gave, one that has another's.
    fn store() -> (SlabStore, [BlockId; 3]) {
        let mut store = SlabStore::new(4, &[4]).unwrap();
        store.order_by_priority().unwrap();
        let mut blocks = Vec::new();
        store.allocate(POOL, 3, &mut blocks).unwrap();
        store.set_priority(POOL, blocks[1], 7);
        store.set_priority(POOL, blocks[2], 8);
        (store, [blocks[0], blocks[1], blocks[2]])
    }

    fn end(block: BlockId, hint: Hint) -> SessionEnd {
        let left = vec![LeftBlock { pool: POOL, block, worth: 1.0, priority: 7 }];
        SessionEnd { class: WorthClass::new(0, hint), at: (0.0, 0), left }
    }

    #[test]
    fn own_are_blocks_without_a_priority_or_with_one_that_the_session_gave() {
        let (mut store, [new, given, others]) = store();
        let end = end(given, Hint::None);
        let blocks = [BlockId::NULL, new, given, others];
        let own = Given::new(Some(&end), Hint::None).take_own(&mut store, POOL, &blocks);
        assert_eq!(own, [new, given]);
        assert_eq!(Given::new(None, Hint::None).take_own(&mut store, POOL, &blocks), [new]);
    }

    #[test]
    fn own_blocks_lose_their_priority_where_something_was_or_is_said() {
        for (before, now) in
            [(Hint::None, Hint::None), (Hint::Paused, Hint::None), (Hint::None, Hint::Done)]
        {
            let (mut store, [_, given, others]) = store();
            let end = end(given, before);
            Given::new(Some(&end), now).take_own(&mut store, POOL, &[given, others]);
            let is_said = (before, now) != (Hint::None, Hint::None);
            assert_eq!(store.priority(POOL, given), if is_said { 0 } else { 7 });
            assert_eq!(store.priority(POOL, others), 8);
        }
    }
}
