//! Steps of a manager with vLLM's rules over one pool.

use hybrid_blocks::vllm::{AllocateArgs, KvCacheManager, ManagerConfig, RequestProgress};
use hybrid_blocks::{BlockId, Digest, FixedStore};

pub(crate) const HASH_BLOCK: u32 = 16;

pub(crate) type Manager = KvCacheManager<FixedStore>;

pub(crate) fn with_blocks(num_blocks: u32, config: ManagerConfig) -> Manager {
    KvCacheManager::new(FixedStore::new(num_blocks).unwrap(), config).unwrap()
}

pub(crate) fn at(num_prompt: u32, num_computed: u32, num_tokens: u32) -> RequestProgress {
    RequestProgress { num_prompt, num_computed, num_tokens, ..RequestProgress::default() }
}

/// The handle of a request that has as many digests as it has hash blocks, the first of them `mark`.
pub(crate) fn known(manager: &mut Manager, id: &str, mark: u8, num_tokens: u32) -> u64 {
    let handle = manager.add(id);
    let digest = |at: u32| Digest::from([mark + at as u8; 32]);
    *manager.digests_mut(handle).unwrap() = (0..num_tokens / HASH_BLOCK).map(digest).collect();
    handle
}

/// Computes `num_new` tokens of a request, if there is room.
pub(crate) fn try_compute(
    manager: &mut Manager,
    id: &str,
    mark: u8,
    progress: &RequestProgress,
    num_new: u32,
) -> Option<Vec<Vec<BlockId>>> {
    let handle = known(manager, id, mark, progress.num_tokens);
    let args = AllocateArgs { num_new, ..AllocateArgs::default() };
    manager.allocate(handle, progress, &args).unwrap()
}

/// Computes `num_new` tokens of a request.
pub(crate) fn compute(
    manager: &mut Manager,
    id: &str,
    mark: u8,
    progress: &RequestProgress,
    num_new: u32,
) -> Vec<Vec<BlockId>> {
    try_compute(manager, id, mark, progress, num_new).unwrap()
}
