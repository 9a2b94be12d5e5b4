//! `BlockManager`: the core's manager behind a lock.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

use std::sync::{Mutex, MutexGuard};

use hybrid_blocks::{
    self as core, BlockCopy, BlockStore, Event, GroupId, Hashing, HitLimit, Manager, Policy,
    PoolId, TableChange,
};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::batch::{Counts, Handle, Handles, TokenArray, optional_size, size};
use crate::error::{core_error, invalid_argument};
use crate::group_spec::GroupSpec;
use crate::hash::BlockHasher;
use crate::placement::Placement;
use crate::policy::{Compaction, policy};

#[pyclass(frozen, module = "hybrid_blocks._core")]
pub(crate) struct BlockManager {
    manager: Mutex<Manager>,
    hasher: Py<BlockHasher>,
}

#[pymethods]
impl BlockManager {
    #[new]
    #[pyo3(signature = (
        groups, hasher, *, num_blocks = None, num_slabs = None, blocks_per_slab = None,
        enable_caching = true, enable_events = false, enable_delta = false, enable_compaction = true,
        policy = Policy::Lru, placement = None, max_chunk = 1_073_741_824
    ))]
    #[expect(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "keyword arguments of the constructor"
    )]
    fn new(
        groups: Vec<PyRef<'_, GroupSpec>>,
        hasher: &Bound<'_, BlockHasher>,
        #[pyo3(from_py_with = optional_size)] num_blocks: Option<u32>,
        #[pyo3(from_py_with = optional_size)] num_slabs: Option<u32>,
        blocks_per_slab: Option<Vec<u32>>,
        enable_caching: bool,
        enable_events: bool,
        enable_delta: bool,
        enable_compaction: bool,
        #[pyo3(from_py_with = policy)] policy: Policy,
        placement: Option<PyRef<'_, Placement>>,
        #[pyo3(from_py_with = size)] max_chunk: u32,
    ) -> PyResult<Self> {
        let store = match (num_blocks, num_slabs, blocks_per_slab) {
            (Some(num_blocks), None, None) => BlockStore::fixed(num_blocks),
            (None, Some(num_slabs), Some(blocks)) => BlockStore::shared(num_slabs, &blocks),
            _ => {
                return Err(invalid_argument(
                    "give either num_blocks, or num_slabs and blocks_per_slab",
                ));
            }
        }
        .map_err(core_error)?;
        let (hash_block_size, algorithm, seed) = hasher.get().settings(hasher.py())?;
        let config = core::Config {
            groups: groups.iter().map(|group| group.0).collect(),
            hash_block_size: u32::try_from(hash_block_size).map_err(invalid_argument)?,
            enable_caching,
            enable_events,
            enable_delta,
            enable_compaction,
            policy,
            placement: placement.map_or_else(core::Placement::default, |placement| placement.0),
            hashing: Hashing { algorithm, seed },
            max_chunk,
        };
        let manager = Manager::new(store, config).map_err(core_error)?;
        Ok(Self { manager: Mutex::new(manager), hasher: hasher.clone().unbind() })
    }

    #[pyo3(signature = (request_id, tokens, extra_keys = None))]
    fn add_request(
        &self,
        request_id: &str,
        tokens: &Bound<'_, PyAny>,
        extra_keys: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let (chain, digests) = self.hasher.get().hash_prompt(tokens, extra_keys)?;
        let mut manager = self.lock(tokens.py())?;
        manager.add_hashed(request_id, chain, digests).map_err(core_error)
    }

    fn append_tokens(
        &self,
        py: Python<'_>,
        handles: Handles<'_>,
        tokens: TokenArray<'_>,
    ) -> PyResult<()> {
        let (handles, tokens) = (handles.as_slice()?, tokens.as_slice()?);
        self.lock(py)?.append_tokens(handles, tokens).map_err(core_error)
    }

    fn match_prefix(&self, py: Python<'_>, handle: Handle) -> PyResult<u32> {
        Ok(self.lock(py)?.match_prefix(handle.0).map_err(core_error)?.num_tokens)
    }

    fn match_limit(&self, py: Python<'_>, handle: Handle) -> PyResult<&'static str> {
        Ok(self.lock(py)?.match_prefix(handle.0).map_err(core_error)?.limit.name())
    }

    #[pyo3(signature = (handle, headroom = 0))]
    fn can_admit(
        &self,
        py: Python<'_>,
        handle: Handle,
        #[pyo3(from_py_with = size)] headroom: u32,
    ) -> PyResult<bool> {
        self.lock(py)?.can_admit(handle.0, u64::from(headroom)).map_err(core_error)
    }

    fn next_boundary(&self, py: Python<'_>, handle: Handle) -> PyResult<Option<u32>> {
        self.lock(py)?.next_boundary(handle.0).map_err(core_error)
    }

    fn take_copies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let copies = self.lock(py)?.take_copies().map_err(core_error)?;
        let rows = copies.iter().map(|&BlockCopy { group, src, dst }| [group.0, src.0, dst.0]);
        rows_array(py, rows)
    }

    #[pyo3(signature = (handles, num_new_tokens, lookahead = 0))]
    fn allocate(
        &self,
        py: Python<'_>,
        handles: Handles<'_>,
        num_new_tokens: Counts<'_>,
        #[pyo3(from_py_with = size)] lookahead: u32,
    ) -> PyResult<usize> {
        let counts = num_new_tokens.as_slice()?;
        self.lock(py)?.allocate(handles.as_slice()?, counts, lookahead).map_err(core_error)
    }

    fn advance(
        &self,
        py: Python<'_>,
        handles: Handles<'_>,
        num_tokens: Counts<'_>,
    ) -> PyResult<()> {
        let counts = num_tokens.as_slice()?;
        self.lock(py)?.advance(handles.as_slice()?, counts).map_err(core_error)
    }

    fn set_worth(
        &self,
        py: Python<'_>,
        handle: Handle,
        worth: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<()> {
        let worth = worth.as_slice()?.to_vec();
        self.lock(py)?.set_worth(handle.0, worth).map_err(core_error)
    }

    fn set_alpha(&self, py: Python<'_>, alpha: f64) -> PyResult<()> {
        self.lock(py)?.set_alpha(alpha).map_err(core_error)
    }

    fn plan_compaction(&self, py: Python<'_>, num_slabs: usize) -> PyResult<Compaction> {
        Ok(Compaction(self.lock(py)?.plan_compaction(num_slabs)))
    }

    fn apply_compaction<'py>(
        &self,
        py: Python<'py>,
        plan: PyRef<'_, Compaction>,
    ) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let changes = self.lock(py)?.apply_compaction(&plan.0).map_err(core_error)?;
        rows_array(py, changes.iter().map(table_change))
    }

    fn preempt(&self, py: Python<'_>, handles: Handles<'_>) -> PyResult<()> {
        self.lock(py)?.preempt(handles.as_slice()?).map_err(core_error)
    }

    fn free(&self, py: Python<'_>, handles: Handles<'_>) -> PyResult<()> {
        self.lock(py)?.free(handles.as_slice()?).map_err(core_error)
    }

    fn tick(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.tick();
        Ok(())
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.reset().map_err(core_error)
    }

    #[pyo3(signature = (handle, group = 0))]
    fn block_ids<'py>(
        &self,
        py: Python<'py>,
        handle: Handle,
        group: u32,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let manager = self.lock(py)?;
        let blocks = manager.blocks(handle.0, GroupId(group)).map_err(core_error)?;
        Ok(PyArray1::from_iter(py, blocks.iter().map(|block| block.0.cast_signed())))
    }

    fn progress(&self, py: Python<'_>, handle: Handle) -> PyResult<(u32, u32, u32)> {
        self.lock(py)?.progress(handle.0).map_err(core_error)
    }

    fn find(&self, py: Python<'_>, request_id: &str) -> PyResult<Option<u64>> {
        Ok(self.lock(py)?.find(request_id))
    }

    fn take_delta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let delta = self.lock(py)?.take_delta();
        rows_array(py, delta.iter().map(table_change))
    }

    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events = self.lock(py)?.take_events();
        let algorithm = self.hasher.get().settings(py)?.1;
        let bytes = |digest| PyBytes::new(py, algorithm.digest_bytes(digest));
        let list = PyList::empty(py);
        for event in &events {
            let tuple = match event {
                Event::Stored { handle, group, first_block, block_size, parent, digests } => {
                    let digests = PyList::new(py, digests.iter().map(bytes))?;
                    let parent = parent.as_ref().map(bytes);
                    ("stored", *handle, group.0, *first_block, *block_size, parent, digests)
                        .into_pyobject(py)?
                }
                Event::Removed(key) => {
                    ("removed", bytes(&key.digest), key.group.0).into_pyobject(py)?
                }
                Event::Cleared => PyTuple::new(py, ["cleared"])?,
                _ => continue,
            };
            list.append(tuple)?;
        }
        Ok(list)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.lock(py)?.stats();
        let dict = PyDict::new(py);
        dict.set_item("queries", stats.queries)?;
        dict.set_item("hits", stats.hits)?;
        dict.set_item("preemptions", stats.preemptions)?;
        dict.set_item("checkpoints", stats.checkpoints)?;
        dict.set_item("forks", stats.forks)?;
        dict.set_item("compactions", stats.compactions)?;
        dict.set_item("moves", stats.moves)?;
        for (limit, count) in HitLimit::ALL.iter().zip(stats.limits) {
            dict.set_item(format!("limit_{}", limit.name()), count)?;
        }
        Ok(dict)
    }

    #[getter]
    fn num_requests(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.num_requests())
    }

    #[getter]
    fn num_groups(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.lock(py)?.num_groups())
    }

    #[getter]
    fn max_request_tokens(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.lock(py)?.max_request_tokens())
    }

    #[getter]
    fn num_blocks(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.store().num_slabs())
    }

    #[getter]
    fn num_free_blocks(&self, py: Python<'_>) -> PyResult<u64> {
        let manager = self.lock(py)?;
        let store = manager.store();
        Ok(if store.is_shared() { store.num_whole_slabs() } else { store.num_available(PoolId(0)) })
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.store().memory_bytes())
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.check_integrity().map_err(crate::error::integrity_error)
    }
}

impl BlockManager {
    /// A panic in an earlier call leaves the manager unusable, and every later call says so.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Manager>> {
        self.manager.lock_py_attached(py).map_err(|_| {
            crate::error::integrity_error("an earlier call panicked; make a new manager".to_owned())
        })
    }
}

fn table_change(change: &TableChange) -> [u32; 4] {
    [change.row, change.group.0, change.position, change.block.0]
}

/// Rows of ids as an int32 array `[n, N]`.
fn rows_array<const N: usize>(
    py: Python<'_>,
    rows: impl ExactSizeIterator<Item = [u32; N]>,
) -> PyResult<Bound<'_, PyArray2<i32>>> {
    let num_rows = rows.len();
    let flat: Vec<i32> = rows.flatten().map(u32::cast_signed).collect();
    PyArray1::from_vec(py, flat).reshape([num_rows, N])
}
