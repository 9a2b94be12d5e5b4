//! [`Call`]: one request's call in progress, with all that it may change.

use rustc_hash::FxHashSet;

use super::config::{GroupConfig, ManagerConfig};
use super::progress::RequestProgress;
use super::request::Request;
use super::stats::KvCacheStats;
use crate::engine::cache::Cache;
use crate::error::Error;
use crate::group::{Group, Table};
use crate::ids::{BlockId, GroupId, PoolId};
use crate::learn::Reason;
use crate::learn::keeper::Keeper;
use crate::prefix_index::Key;
use crate::store::Store;
use hybrid_blocks_hash::Digest;

/// A block of a recurrent group that holds the state at a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundaryState {
    /// The request that computed it.
    pub handle: u64,
    /// Group of the state.
    pub group: GroupId,
    /// Block of the state.
    pub block: BlockId,
    /// Tokens up to the boundary.
    pub num_tokens: u32,
}

/// Blocks and states that a group hands over at the end of a step.
#[derive(Debug, Default)]
pub(crate) struct StepOutputs {
    /// New blocks that the worker must zero.
    pub(crate) new_blocks: Vec<BlockId>,
    /// States that a connector may save.
    pub(crate) boundary_states: Vec<BoundaryState>,
    /// States that exist only once the current step has run.
    pub(crate) cached_this_step: FxHashSet<Digest>,
}

/// State of the rules over slabs during one call.
#[derive(Debug, Default)]
pub(crate) struct SlabHooks {
    /// Blocks by pool that the call leaves to other requests.
    pub(crate) left_to_others: Vec<u64>,
    /// Whether the request runs alone, with all memory for its own blocks.
    pub(crate) runs_alone: bool,
    /// Why the call copies states, if it does.
    pub(crate) copy_reason: Option<Reason>,
    /// Lengths inside the chunk after which a group's state is to be kept, and the groups.
    pub(crate) inside: Vec<(u32, usize)>,
    /// Planned copies without room.
    pub(crate) num_cancelled: u64,
    /// Tokens of the checkpoint that the call uses or leaves.
    pub(crate) checkpoint: Option<u32>,
}

/// One request's call.
pub(crate) struct Call<'a, S> {
    pub(crate) config: &'a ManagerConfig,
    pub(crate) cache: &'a mut Cache<S>,
    pub(crate) outputs: &'a mut [StepOutputs],
    pub(crate) stats: &'a mut KvCacheStats,
    pub(crate) keeper: Option<&'a mut Keeper>,
    pub(crate) request: &'a mut Request,
    pub(crate) handle: u64,
    pub(crate) progress: RequestProgress,
    pub(crate) digests: &'a [Digest],
    pub(crate) tables: &'a mut [Table],
    pub(crate) slabs: SlabHooks,
    /// Whether the request holds blocks while it waits, as for a load: no step preempts it then.
    pub(crate) waits_with_blocks: bool,
}

impl<'a, S: Store> Call<'a, S> {
    pub(crate) fn config_of(&self, group: usize) -> &'a GroupConfig {
        &self.config.groups[group]
    }

    pub(crate) fn group(&self, group: usize) -> Group {
        self.cache.groups[group]
    }

    pub(crate) fn pool(&self, group: usize) -> PoolId {
        self.cache.groups[group].spec.pool
    }

    /// The pool of the blocks that a group's keys name.
    pub(crate) fn kept(&self, group: usize) -> PoolId {
        self.cache.groups[group].kept
    }

    /// Whether the request was admitted.
    pub(crate) fn is_running(&self) -> bool {
        self.tables.iter().any(|table| table.num_cached().is_some())
    }

    /// Gives back what the request need not keep once `num_processed` tokens are computed for good.
    pub(crate) fn release_skipped(&mut self, num_processed: u32) -> Result<(), Error> {
        let end = self.keeper.as_deref().map_or(0, |keeper| keeper.traffic.end(num_processed));
        let places = self.request.trail.places(end);
        let windows = &mut self.request.trail.windows;
        for (group, table) in self.tables.iter_mut().enumerate() {
            windows.release_skipped(self.cache, group, table, num_processed, &places)?;
        }
        Ok(())
    }

    /// The first key of a block of a group, and the tokens it stands for.
    pub(crate) fn first_key(&self, group: usize, block: BlockId) -> Option<(Key, u32)> {
        self.cache.store.prefix_index(self.kept(group)).first_key(block)
    }

    /// Drops the keys of a block whose content its request changes or does not want any more.
    pub(crate) fn drop_own_keys(&mut self, group: usize, block: BlockId) {
        let pool = self.kept(group);
        self.cache.store.drop_own_keys(pool, block);
    }

    /// Appends `num_blocks` new blocks of a group to `out`.
    pub(crate) fn take(
        &mut self,
        group: usize,
        num_blocks: u32,
        out: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        let pool = self.pool(group);
        self.cache.take(pool, u64::from(num_blocks), None, out)
    }
}
