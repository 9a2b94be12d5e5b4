//! [`Owners`]: which session's content each block holds, as long as no other one went on from it.

use crate::ids::{BlockId, PoolId};
use crate::store::Store;

/// Content that several sessions need, or that was there before anybody asked.
const SHARED: u64 = 0;

/// The number of a session for each block of each pool.
#[derive(Debug)]
pub(super) struct Owners {
    of: Vec<Box<[u64]>>,
}

impl Owners {
    /// All that is there is shared.
    pub(super) fn new<S: Store>(store: &S) -> Self {
        let num_ids = |pool| store.pool(PoolId(pool)).num_ids() as usize;
        let of = (0..store.num_pools()).map(|pool| vec![SHARED; num_ids(pool)].into());
        Self { of: of.collect() }
    }

    /// A session computed blocks.
    pub(super) fn set(&mut self, pool: PoolId, blocks: &[BlockId], session: u64) {
        let of = &mut self.of[pool.index()];
        for block in blocks {
            of[block.index()] = session;
        }
    }

    /// A session goes on from blocks.
    pub(super) fn go_on(&mut self, pool: PoolId, blocks: &[BlockId], session: u64) {
        let of = &mut self.of[pool.index()];
        for owner in blocks.iter().map(|block| block.index()) {
            if of[owner] != session {
                of[owner] = SHARED;
            }
        }
    }

    /// Whether a session computed a block, and no other one went on from it.
    pub(super) fn is_own(&self, pool: PoolId, block: BlockId, session: u64) -> bool {
        self.of[pool.index()][block.index()] == session
    }
}
