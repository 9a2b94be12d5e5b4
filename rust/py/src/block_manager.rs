//! `BlockManager`: the core's manager behind a lock.

use hybrid_blocks::{self as core, GroupId, Hashing, Hint, Store};
use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};

use crate::batch::{
    Counts, Handle, Handles, TokenArray, client, optional_size, optional_sizes, size,
};
use crate::checkpoint_policy::CheckpointPolicy;
use crate::group_spec::GroupSpec;
use crate::reports::{
    copies_array, events_list, num_free_blocks, num_live_blocks, prefill_checkpoints_array,
    stats_dict,
};
use hybrid_blocks_interop::Guarded;
use hybrid_blocks_interop::PyBlockHasher;
use hybrid_blocks_interop::{core_error, integrity_error, invalid_argument, optional_hint};

#[pyclass(frozen, module = "hybrid_blocks._core")]
pub(crate) struct BlockManager {
    manager: Guarded<core::BlockManager>,
    hasher: Py<PyBlockHasher>,
    /// Whether checkpoints have a pool of their own, so that copies name pools.
    keeps_apart: bool,
}

#[pymethods]
impl BlockManager {
    #[new]
    #[pyo3(signature = (
        groups, hasher, *, num_blocks = None, num_slabs = None, blocks_per_slab = None,
        enable_caching = true, enable_events = false, placement = None,
        max_in_flight_tokens = 1_073_741_824, max_request_tokens = None, watermark = 0,
        prefill_checkpoint_alignment = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the constructor")]
    fn new(
        groups: Vec<PyRef<'_, GroupSpec>>,
        hasher: &Bound<'_, PyBlockHasher>,
        #[pyo3(from_py_with = optional_size)] num_blocks: Option<u32>,
        #[pyo3(from_py_with = optional_size)] num_slabs: Option<u32>,
        #[pyo3(from_py_with = optional_sizes)] blocks_per_slab: Option<Vec<u32>>,
        enable_caching: bool,
        enable_events: bool,
        placement: Option<PyRef<'_, CheckpointPolicy>>,
        #[pyo3(from_py_with = size)] max_in_flight_tokens: u32,
        #[pyo3(from_py_with = optional_size)] max_request_tokens: Option<u32>,
        #[pyo3(from_py_with = size)] watermark: u32,
        #[pyo3(from_py_with = optional_size)] prefill_checkpoint_alignment: Option<u32>,
    ) -> PyResult<Self> {
        let store = new_store(num_blocks, num_slabs, blocks_per_slab)?;
        let (hash_block_size, algorithm, seed) = hasher.get().settings(hasher.py())?;
        let config = core::Config {
            groups: groups.iter().map(|group| group.spec).collect(),
            kept_pools: groups.iter().map(|group| group.kept_pool).collect(),
            hash_block_size: u32::try_from(hash_block_size).map_err(invalid_argument)?,
            enable_caching,
            enable_events,
            checkpoints: placement.map_or_else(Default::default, |policy| policy.0),
            hashing: Hashing { algorithm, seed },
            max_in_flight_tokens,
            max_request_tokens,
            watermark,
            prefill_checkpoint_alignment,
        };
        let keeps_apart = config.kept_pools.iter().any(Option::is_some);
        let manager = core::BlockManager::new(store, config).map_err(core_error)?;
        Ok(Self { manager: Guarded::new(manager), hasher: hasher.clone().unbind(), keeps_apart })
    }

    #[pyo3(signature = (
        request_id, tokens, extra_keys = None, *, session_id = None, client = 0, hint = None
    ))]
    fn add_request(
        &self,
        request_id: &str,
        tokens: &Bound<'_, PyAny>,
        extra_keys: Option<&Bound<'_, PyAny>>,
        session_id: Option<&str>,
        #[pyo3(from_py_with = client)] client: u16,
        #[pyo3(from_py_with = optional_hint)] hint: Option<Hint>,
    ) -> PyResult<u64> {
        let (chain, digests) = self.hasher.get().hash_prompt(tokens, extra_keys)?;
        self.manager.call(tokens.py(), |manager| {
            let handle = manager.add_hashed(request_id, chain, digests)?;
            manager.set_client(handle, client)?;
            if session_id.is_some() || hint.is_some() {
                manager.set_session(handle, session_id, hint.unwrap_or_default())?;
            }
            Ok(handle)
        })
    }

    fn set_hint(
        &self,
        py: Python<'_>,
        handle: Handle,
        #[pyo3(from_py_with = optional_hint)] hint: Option<Hint>,
    ) -> PyResult<()> {
        self.manager.call(py, |manager| manager.set_hint(handle.0, hint.unwrap_or_default()))
    }

    fn set_session_hint(
        &self,
        py: Python<'_>,
        session_id: &str,
        #[pyo3(from_py_with = optional_hint)] hint: Option<Hint>,
    ) -> PyResult<bool> {
        let hint = hint.unwrap_or_default();
        self.manager.call(py, |manager| Ok(manager.set_session_hint(session_id, hint)))
    }

    fn append_tokens(
        &self,
        py: Python<'_>,
        handles: Handles<'_>,
        tokens: TokenArray<'_>,
    ) -> PyResult<()> {
        let (handles, tokens) = (handles.as_slice()?, tokens.as_slice()?);
        self.manager.call(py, |manager| manager.append_tokens(handles, tokens))
    }

    fn match_prefix(&self, py: Python<'_>, handle: Handle) -> PyResult<u32> {
        Ok(self.manager.call(py, |manager| manager.match_prefix(handle.0))?.num_tokens)
    }

    fn match_limit(&self, py: Python<'_>, handle: Handle) -> PyResult<&'static str> {
        Ok(self.manager.call(py, |manager| manager.match_prefix(handle.0))?.limit.name())
    }

    fn waits_for_checkpoint(&self, py: Python<'_>, handle: Handle) -> PyResult<bool> {
        self.manager.call(py, |manager| manager.waits_for_checkpoint(handle.0))
    }

    fn num_uncached(&self, py: Python<'_>, handle: Handle) -> PyResult<u32> {
        self.manager.call(py, |manager| manager.num_uncached(handle.0))
    }

    fn chunk(
        &self,
        py: Python<'_>,
        handle: Handle,
        #[pyo3(from_py_with = size)] start: u32,
        #[pyo3(from_py_with = size)] most: u32,
    ) -> PyResult<u32> {
        self.manager.call(py, |manager| manager.chunk(handle.0, start, most))
    }

    fn take_copies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let copies = self.manager.call(py, core::BlockManager::take_copies)?;
        copies_array(py, &copies, self.keeps_apart)
    }

    fn take_prefill_checkpoints<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyArray2<i64>>> {
        let taken = self.manager.with(py, core::BlockManager::take_prefill_checkpoints)?;
        prefill_checkpoints_array(py, &taken)
    }

    #[pyo3(signature = (handles, num_new_tokens, lookahead = 0))]
    fn allocate(
        &self,
        py: Python<'_>,
        handles: Handles<'_>,
        num_new_tokens: Counts<'_>,
        #[pyo3(from_py_with = size)] lookahead: u32,
    ) -> PyResult<usize> {
        let (handles, counts) = (handles.as_slice()?, num_new_tokens.as_slice()?);
        self.manager.call(py, |manager| manager.allocate(handles, counts, lookahead))
    }

    fn advance(
        &self,
        py: Python<'_>,
        handles: Handles<'_>,
        num_tokens: Counts<'_>,
    ) -> PyResult<()> {
        let (handles, counts) = (handles.as_slice()?, num_tokens.as_slice()?);
        self.manager.call(py, |manager| manager.advance(handles, counts))
    }

    fn preempt(&self, py: Python<'_>, handles: Handles<'_>) -> PyResult<()> {
        let handles = handles.as_slice()?;
        self.manager.call(py, |manager| manager.preempt(handles))
    }

    fn free(&self, py: Python<'_>, handles: Handles<'_>) -> PyResult<()> {
        let handles = handles.as_slice()?;
        self.manager.call(py, |manager| manager.free(handles))
    }

    fn tick(&self, py: Python<'_>) -> PyResult<()> {
        self.manager.with(py, core::BlockManager::tick)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.manager.call(py, core::BlockManager::reset)
    }

    #[pyo3(signature = (handle, group = 0))]
    fn block_ids<'py>(
        &self,
        py: Python<'py>,
        handle: Handle,
        #[pyo3(from_py_with = size)] group: u32,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let blocks = self.manager.call(py, |manager| {
            let blocks = manager.blocks(handle.0, GroupId(group))?;
            Ok(blocks.iter().map(|block| block.0.cast_signed()).collect())
        })?;
        Ok(PyArray1::from_vec(py, blocks))
    }

    fn progress(&self, py: Python<'_>, handle: Handle) -> PyResult<(u32, u32, u32)> {
        self.manager.call(py, |manager| manager.progress(handle.0))
    }

    fn find(&self, py: Python<'_>, request_id: &str) -> PyResult<Option<u64>> {
        self.manager.with(py, |manager| manager.find(request_id))
    }

    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events = self.manager.with(py, core::BlockManager::take_events)?;
        events_list(py, self.hasher.get().settings(py)?.1, &events)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.manager.with(py, |manager| manager.stats())?;
        stats_dict(py, &stats)
    }

    #[getter]
    fn num_requests(&self, py: Python<'_>) -> PyResult<usize> {
        self.manager.with(py, |manager| manager.num_requests())
    }

    #[getter]
    fn num_groups(&self, py: Python<'_>) -> PyResult<u32> {
        self.manager.with(py, |manager| manager.num_groups())
    }

    #[getter]
    fn max_request_tokens(&self, py: Python<'_>) -> PyResult<u32> {
        self.manager.with(py, |manager| manager.max_request_tokens())
    }

    #[getter]
    fn num_blocks(&self, py: Python<'_>) -> PyResult<u64> {
        self.manager.with(py, |manager| manager.store().num_slabs())
    }

    #[getter]
    fn num_free_blocks(&self, py: Python<'_>) -> PyResult<u64> {
        self.manager.with(py, |manager| num_free_blocks(manager.store()))
    }

    #[pyo3(signature = (*, pool = 0))]
    fn num_live_blocks(&self, py: Python<'_>, pool: u32) -> PyResult<u32> {
        self.manager.call(py, |manager| num_live_blocks(manager.store(), pool))
    }

    fn reserved_bytes<'py>(
        &self,
        py: Python<'py>,
        slab_bytes: u64,
        block_bytes: Vec<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let sizes = core::ByteSizes { slab: slab_bytes, blocks: &block_bytes };
        let reserved = self.manager.call(py, |manager| manager.reserved_bytes(sizes))?;
        reserved.parts().into_py_dict(py)
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.manager.with(py, |manager| manager.store().memory_bytes())
    }

    /// Panics inside the core, so that tests can see the manager's state afterwards.
    #[cfg(feature = "fault-injection")]
    fn _panic(&self, py: Python<'_>) -> PyResult<()> {
        self.manager.with(py, |_| panic!("asked to"))
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.manager.with(py, |manager| manager.check_integrity())?.map_err(integrity_error)
    }
}

/// The store that a constructor's arguments describe.
fn new_store(
    num_blocks: Option<u32>,
    num_slabs: Option<u32>,
    blocks_per_slab: Option<Vec<u32>>,
) -> PyResult<core::BlockStore> {
    match (num_blocks, num_slabs, blocks_per_slab) {
        (Some(num_blocks), None, None) => core::BlockStore::fixed(num_blocks),
        (None, Some(num_slabs), Some(blocks)) => core::BlockStore::shared(num_slabs, &blocks),
        _ => {
            return Err(invalid_argument(
                "give either num_blocks, or num_slabs and blocks_per_slab",
            ));
        }
    }
    .map_err(core_error)
}
