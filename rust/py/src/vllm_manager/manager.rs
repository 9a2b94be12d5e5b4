//! [`VllmManager`]: what vLLM's scheduler calls for every request of every step.

use std::sync::{Mutex, MutexGuard, OnceLock};

use hybrid_blocks::vllm::{Ask, Facts, Manager, Span};
use hybrid_blocks::{BlockId, GroupId};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use super::config::ConfigFields;
use super::result::{AllocatedBlocks, ids_of, ids_of_groups};
use super::{digests, events, facts};
use crate::blocks::Blocks;
use crate::error::{core_error, integrity_error};
use crate::guarded::caught;

/// The base of the Python class. It is empty until `_start` is called, and asks for its
/// configuration when it is first used: until then vLLM's objects may be changed.
#[pyclass(frozen, subclass, module = "hybrid_blocks._core")]
pub(crate) struct VllmManager(OnceLock<Core>);

struct Core {
    // Locked before the blocks, and never while Python code runs.
    manager: OnceLock<Running>,
    blocks: Py<Blocks>,
    /// The one answer that stands for no blocks at all.
    empty: Py<AllocatedBlocks>,
    class: Py<PyType>,
    /// States of requests that are to be admitted.
    waiting: Vec<Py<PyAny>>,
}

#[expect(clippy::struct_excessive_bools, reason = "independent answers of the configuration")]
struct Running {
    manager: Mutex<Manager>,
    has_watermark: bool,
    heeds_boundary: bool,
    enable_caching: bool,
    enable_events: bool,
}

impl VllmManager {
    #[inline]
    fn core<'a>(slf: &'a Bound<'_, Self>) -> PyResult<&'a Core> {
        match slf.get().0.get() {
            Some(core) if core.manager.get().is_some() => Ok(core),
            core => Self::configure(slf, core),
        }
    }

    #[cold]
    fn configure<'a>(slf: &'a Bound<'_, Self>, core: Option<&'a Core>) -> PyResult<&'a Core> {
        let Some(core) = core else {
            return Err(integrity_error("the manager was not started".to_owned()));
        };
        let config: ConfigFields = slf.call_method0(intern!(slf.py(), "_geometry"))?.extract()?;
        let config = config.config()?;
        let running = Running {
            has_watermark: config.watermark_blocks > 0,
            heeds_boundary: config.heeds_shared_prefix_boundary(),
            enable_caching: config.enable_caching(),
            enable_events: config.enable_events,
            manager: Mutex::new(Manager::new(config).map_err(core_error)?),
        };
        // Another thread may have been first, with the same answer.
        let _ = core.manager.set(running);
        Ok(core)
    }

    /// Whether a running request has room for `num_new` tokens, and nothing else to do with blocks.
    #[inline]
    pub(crate) fn is_quiet(
        slf: &Bound<'_, Self>,
        request_id: &str,
        progress: &Facts,
        num_new: u32,
    ) -> PyResult<bool> {
        Self::core(slf)?.is_quiet(slf.py(), request_id, progress, num_new, 0)
    }

    /// Room for `num_new` tokens of a running request, or `None`.
    pub(crate) fn extend<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
        num_new: u32,
    ) -> PyResult<Option<Bound<'py, AllocatedBlocks>>> {
        Self::allocate_slots(
            slf,
            request,
            num_new,
            0,
            None,
            0,
            0,
            false,
            0,
            false,
            0,
            true,
            Vec::new(),
        )
    }
}

impl Core {
    #[inline]
    fn running(&self) -> PyResult<&Running> {
        self.manager.get().ok_or_else(|| integrity_error("not configured".to_owned()))
    }

    /// A panic in an earlier call leaves the manager unusable, and every later call says so.
    #[inline]
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Manager>> {
        let running = self.running()?;
        running
            .manager
            .lock_py_attached(py)
            .map_err(|_| integrity_error("an earlier call panicked; make a new manager".to_owned()))
    }

    fn result<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<Vec<BlockId>>,
    ) -> PyResult<Bound<'py, AllocatedBlocks>> {
        if AllocatedBlocks::is_empty(&ids) {
            return Ok(self.empty.bind(py).clone());
        }
        let blocks = self.blocks.clone_ref(py);
        Bound::new(py, AllocatedBlocks { ids, blocks, class: self.class.clone_ref(py) })
    }

    /// Whether an allocation of nothing but new tokens would change nothing.
    #[inline]
    fn is_quiet(
        &self,
        py: Python<'_>,
        request_id: &str,
        progress: &Facts,
        num_new: u32,
        num_lookahead: u32,
    ) -> PyResult<bool> {
        let manager = self.lock(py)?;
        let store = self.blocks.get().lock(py)?;
        Ok(manager.is_quiet(&store, request_id, progress, num_new, num_lookahead))
    }

    /// Bring the request's digests up to date.
    fn read_digests(&self, request: &Bound<'_, PyAny>, request_id: &str) -> PyResult<()> {
        if !self.running()?.enable_caching {
            return Ok(());
        }
        let mut digests = std::mem::take(self.lock(request.py())?.digests_mut(request_id));
        let result = digests::update(&mut digests, request);
        *self.lock(request.py())?.digests_mut(request_id) = digests;
        result
    }
}

/// A panic as an exception that names the request. Its locks stay poisoned: every later call is
/// refused, for the state is unknown.
fn guarded<T>(request_id: &str, call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    caught(call, |message| {
        format!(
            "the block manager panicked at request {request_id:?}: {message}; restart the engine"
        )
    })?
}

/// Hand the changes of the prefix cache to Python, if anybody wants to know.
fn tell(
    slf: &Bound<'_, VllmManager>,
    core: &Core,
    request: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    if !core.running()?.enable_events {
        return Ok(());
    }
    let py = slf.py();
    let events = {
        let mut manager = core.lock(py)?;
        let mut store = core.blocks.get().lock(py)?;
        manager.take_events(&mut store)
    };
    if events.is_empty() {
        return Ok(());
    }
    let events = events::tuples(py, &events)?;
    slf.call_method1(intern!(py, "_note_events"), (request, events)).map(drop)
}

#[pymethods]
impl VllmManager {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self(OnceLock::new())
    }

    fn _start<'py>(
        &self,
        blocks: &Bound<'py, Blocks>,
        num_groups: usize,
        waiting: Vec<Py<PyAny>>,
        class: &Bound<'py, PyType>,
    ) -> PyResult<Bound<'py, AllocatedBlocks>> {
        let py = blocks.py();
        let empty = AllocatedBlocks {
            ids: vec![Vec::new(); num_groups],
            blocks: blocks.clone().unbind(),
            class: class.clone().unbind(),
        };
        let empty = Bound::new(py, empty)?;
        let core = Core {
            blocks: blocks.clone().unbind(),
            empty: empty.clone().unbind(),
            class: class.clone().unbind(),
            waiting,
            manager: OnceLock::new(),
        };
        match self.0.set(core) {
            Ok(()) => Ok(empty),
            Err(_) => Err(integrity_error("the manager is started already".to_owned())),
        }
    }

    #[pyo3(signature = (
        request, num_new_tokens, num_new_computed_tokens = 0, new_computed_blocks = None,
        num_lookahead_tokens = 0, num_external_computed_tokens = 0, delay_cache_blocks = false,
        num_encoder_tokens = 0, full_sequence_must_fit = false, reserved_blocks = 0,
        has_scheduled_reqs = true, skip_zeroing_group_ids = Vec::new()
    ))]
    #[expect(clippy::too_many_arguments, reason = "those of vLLM's allocate_slots")]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]
    fn allocate_slots<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
        num_new_tokens: u32,
        num_new_computed_tokens: u32,
        new_computed_blocks: Option<&Bound<'py, PyAny>>,
        num_lookahead_tokens: u32,
        num_external_computed_tokens: u32,
        delay_cache_blocks: bool,
        num_encoder_tokens: u32,
        full_sequence_must_fit: bool,
        reserved_blocks: u64,
        has_scheduled_reqs: bool,
        skip_zeroing_group_ids: Vec<u32>,
    ) -> PyResult<Option<Bound<'py, AllocatedBlocks>>> {
        // Only cross attention takes blocks for the encoder, and that is left to vLLM's manager.
        let _ = num_encoder_tokens;
        let py = slf.py();
        let core = Self::core(slf)?;
        if num_new_tokens == 0 && num_external_computed_tokens == 0 && num_new_computed_tokens == 0
        {
            return Err(PyValueError::new_err(
                "num_new_tokens must be greater than 0 when there are no computed tokens to adopt",
            ));
        }
        let id = facts::request_id(request)?;
        let id = id.to_str()?;
        let only_new = new_computed_blocks.is_none()
            && num_new_computed_tokens == 0
            && num_external_computed_tokens == 0
            && !delay_cache_blocks
            && !full_sequence_must_fit
            && reserved_blocks == 0;
        let running = core.running()?;
        let progress = facts::progress(request)?;
        let is_waiting = running.has_watermark && facts::is_waiting(request, &core.waiting)?;
        if only_new
            && !(is_waiting && has_scheduled_reqs)
            && core.is_quiet(py, id, &progress, num_new_tokens, num_lookahead_tokens)?
        {
            return Ok(Some(core.empty.bind(py).clone()));
        }
        let progress = Facts { is_waiting, ..progress };
        let facts = facts::complete(progress, request, running.heeds_boundary)?;
        core.read_digests(request, id)?;
        let computed = match new_computed_blocks {
            Some(blocks) if !blocks.is(&core.empty) => Some(ids_of(blocks)?),
            _ => None,
        };
        let ask = Ask {
            num_new: num_new_tokens,
            num_new_computed: num_new_computed_tokens,
            computed: computed.as_deref(),
            num_lookahead: num_lookahead_tokens,
            num_external: num_external_computed_tokens,
            delay_commit: delay_cache_blocks,
            full_sequence_must_fit,
            reserved_blocks,
            free_offset: core.blocks.get().free_offset(),
            has_scheduled: has_scheduled_reqs,
            unzeroed_groups: &skip_zeroing_group_ids,
        };
        let new = guarded(id, || {
            let mut manager = core.lock(py)?;
            let mut store = core.blocks.get().lock(py)?;
            manager.allocate(&mut store, id, &facts, &ask).map_err(core_error)
        })?;
        tell(slf, core, Some(request))?;
        new.map(|ids| core.result(py, ids)).transpose()
    }

    #[pyo3(signature = (request, max_cache_hit_length = None))]
    fn get_computed_blocks<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
        max_cache_hit_length: Option<u32>,
    ) -> PyResult<(Bound<'py, AllocatedBlocks>, u32, u32)> {
        let py = slf.py();
        let core = Self::core(slf)?;
        let skips = || -> PyResult<bool> {
            request.getattr(intern!(py, "skip_reading_prefix_cache"))?.is_truthy()
        };
        if !core.running()?.enable_caching || skips()? {
            return Ok((core.empty.bind(py).clone(), 0, 0));
        }
        let limit = if let Some(limit) = max_cache_hit_length {
            limit
        } else {
            // The last token is always computed, for its logits.
            let tokens: u32 = request.getattr(intern!(py, "num_tokens"))?.extract()?;
            tokens.saturating_sub(1)
        };
        let id = facts::request_id(request)?;
        let id = id.to_str()?;
        core.read_digests(request, id)?;
        let hit = guarded(id, || {
            let manager = core.lock(py)?;
            let store = core.blocks.get().lock(py)?;
            Ok(manager.longest_hit_of(&store, id, limit))
        })?;
        let junction = if hit.num_uncached > 0 { hit.num_tokens + hit.num_uncached } else { 0 };
        let blocks = core.result(py, hit.blocks)?;
        if core.running()?.enable_events && hit.num_tokens > 0 {
            slf.call_method1(intern!(py, "_report_hit"), (request, &blocks))?;
        }
        Ok((blocks, hit.num_tokens, junction))
    }

    fn free(slf: &Bound<'_, Self>, request: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::free_by_id(slf, &facts::request_id(request)?)
    }

    #[pyo3(name = "_free")]
    fn free_by_id(slf: &Bound<'_, Self>, request_id: &Bound<'_, PyString>) -> PyResult<()> {
        let (py, core) = (request_id.py(), Self::core(slf)?);
        let id = request_id.to_str()?;
        guarded(id, || {
            let mut manager = core.lock(py)?;
            let mut store = core.blocks.get().lock(py)?;
            manager.free(&mut store, id).map_err(core_error)
        })
    }

    fn pop_blocks_for_free<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        Self::pop_by_id(slf, &facts::request_id(request)?)
    }

    #[pyo3(name = "_pop")]
    fn pop_by_id<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, core) = (request_id.py(), Self::core(slf)?);
        let ids = core.lock(py)?.pop(request_id.to_str()?);
        Blocks::views(core.blocks.bind(py), &ids)
    }

    pub(crate) fn cache_blocks(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, PyAny>,
        num_computed_tokens: u32,
    ) -> PyResult<()> {
        let (py, core) = (slf.py(), Self::core(slf)?);
        let running = core.running()?;
        if !running.enable_caching {
            return Ok(());
        }
        let id = facts::request_id(request)?;
        let id = id.to_str()?;
        {
            let manager = core.lock(py)?;
            let store = core.blocks.get().lock(py)?;
            if manager.is_commit_quiet(&store, id, num_computed_tokens) {
                return Ok(());
            }
        }
        let facts = facts::complete(facts::progress(request)?, request, running.heeds_boundary)?;
        core.read_digests(request, id)?;
        guarded(id, || {
            let mut manager = core.lock(py)?;
            let mut store = core.blocks.get().lock(py)?;
            manager.commit(&mut store, id, &facts, num_computed_tokens).map_err(core_error)
        })?;
        tell(slf, core, Some(request))
    }

    #[pyo3(signature = (request_id, processed_computed_tokens, num_prompt_tokens = None))]
    fn remove_skipped_blocks(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        processed_computed_tokens: u32,
        num_prompt_tokens: Option<u32>,
    ) -> PyResult<()> {
        let _ = num_prompt_tokens;
        let (py, core) = (request_id.py(), Self::core(slf)?);
        let id = request_id.to_str()?;
        guarded(id, || {
            let mut manager = core.lock(py)?;
            let mut store = core.blocks.get().lock(py)?;
            manager.recede(&mut store, id, processed_computed_tokens).map_err(core_error)
        })
    }

    fn get_blocks<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, AllocatedBlocks>> {
        let (py, core) = (request_id.py(), Self::core(slf)?);
        let ids = {
            let manager = core.lock(py)?;
            let id = request_id.to_str()?;
            let groups = 0..manager.config().groups.len() as u32;
            groups.map(|group| manager.blocks(id, GroupId(group)).to_vec()).collect()
        };
        core.result(py, ids)
    }

    fn get_block_ids<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (py, core) = (request_id.py(), Self::core(slf)?);
        let groups = {
            let manager = core.lock(py)?;
            let id = request_id.to_str()?;
            let groups = 0..manager.config().groups.len() as u32;
            groups
                .map(|group| manager.blocks(id, GroupId(group)).iter().map(|id| id.0).collect())
                .collect::<Vec<Vec<u32>>>()
        };
        PyTuple::new(py, groups)
    }

    pub(crate) fn estimate_cached_tokens(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, PyAny>,
    ) -> PyResult<u32> {
        let (py, core) = (request.py(), Self::core(slf)?);
        let id = facts::request_id(request)?;
        let manager = core.lock(py)?;
        let store = core.blocks.get().lock(py)?;
        Ok(manager.num_cached_tokens(&store, id.to_str()?))
    }

    fn take_new_block_ids(slf: &Bound<'_, Self>) -> PyResult<Vec<u32>> {
        let blocks = Self::core(slf)?.lock(slf.py())?.take_new_blocks();
        Ok(blocks.into_iter().map(|block| block.0).collect())
    }

    fn record_blocks_for_zeroing(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        start_token: u32,
    ) -> PyResult<()> {
        let mut manager = Self::core(slf)?.lock(request_id.py())?;
        manager.zero_again(request_id.to_str()?, start_token).map_err(core_error)
    }

    fn take_boundary_state_offloads<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let py = slf.py();
        let states = Self::core(slf)?.lock(slf.py())?.take_boundary_states();
        let offloads = PyDict::new(py);
        for state in states {
            let entry = (state.group.0, state.block.0, state.num_tokens);
            let entries = offloads
                .call_method1(intern!(py, "setdefault"), (state.request_id, PyList::empty(py)))?;
            entries.cast::<PyList>()?.append(entry)?;
        }
        Ok(offloads)
    }

    fn finalize_partial_tail_offloads(
        slf: &Bound<'_, Self>,
        request: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(u32, u32, u32)>> {
        let id = facts::request_id(request)?;
        let Facts { num_computed, num_in_flight, .. } = facts::progress(request)?;
        let mut manager = Self::core(slf)?.lock(request.py())?;
        let states = manager.take_final_states(id.to_str()?, num_computed, num_in_flight);
        Ok(states.into_iter().map(|(group, block, tokens)| (group.0, block.0, tokens)).collect())
    }

    fn new_step_starts(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::core(slf)?.lock(slf.py())?.start_step();
        Ok(())
    }

    /// Pairs of blocks, source and destination, that the worker must copy.
    fn _take_copies<'py>(slf: &Bound<'py, Self>) -> PyResult<Vec<Bound<'py, PyList>>> {
        let core = Self::core(slf)?;
        let py = slf.py();
        let pairs = core.lock(py)?.take_copies();
        let blocks = core.blocks.bind(py);
        pairs.into_iter().map(|(from, to)| Blocks::views(blocks, &[from, to])).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "those of vLLM's coordinator")]
    fn _demand(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        num_tokens: u32,
        new_computed_blocks: &Bound<'_, PyAny>,
        total_computed_tokens: u32,
        num_local_computed_tokens: u32,
        num_tokens_main_model: u32,
        apply_admission_cap: bool,
        prefill_end: u32,
    ) -> PyResult<i64> {
        let (py, core) = (request_id.py(), Self::core(slf)?);
        let computed = ids_of_groups(new_computed_blocks)?;
        let span = Span {
            num_tokens,
            num_main: num_tokens_main_model,
            num_computed: total_computed_tokens,
            num_local: num_local_computed_tokens,
            prefill_end,
            is_admission: apply_admission_cap,
        };
        let id = request_id.to_str()?;
        guarded(id, || {
            let mut manager = core.lock(py)?;
            let mut store = core.blocks.get().lock(py)?;
            Ok(manager.demand(&mut store, id, Some(&computed), span))
        })
    }

    /// A group's blocks of a request; `None` for a request without any.
    fn _blocks_of<'py>(
        slf: &Bound<'py, Self>,
        request_id: &Bound<'py, PyString>,
        group: u32,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (py, core) = (request_id.py(), Self::core(slf)?);
        let ids = core.lock(py)?.blocks(request_id.to_str()?, GroupId(group)).to_vec();
        if ids.is_empty() {
            return Ok(None);
        }
        Blocks::views(core.blocks.bind(py), &ids).map(Some)
    }

    fn _num_cached_blocks(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        group: u32,
    ) -> PyResult<Option<u32>> {
        let manager = Self::core(slf)?.lock(request_id.py())?;
        Ok(manager.num_cached_blocks(request_id.to_str()?, GroupId(group)))
    }

    fn _holders(slf: &Bound<'_, Self>, group: u32) -> PyResult<Vec<String>> {
        Ok(Self::core(slf)?.lock(slf.py())?.holders(GroupId(group)).map(str::to_owned).collect())
    }

    /// Tokens and position of the checkpoint that a request's chunk writes.
    fn _checkpoint(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        group: u32,
    ) -> PyResult<Option<(u32, u32)>> {
        let manager = Self::core(slf)?.lock(request_id.py())?;
        Ok(manager.checkpoint(request_id.to_str()?, GroupId(group)))
    }

    fn _inject_fault(slf: &Bound<'_, Self>, request_id: &Bound<'_, PyString>) -> PyResult<()> {
        Self::core(slf)?.lock(request_id.py())?.inject_fault(request_id.to_str()?);
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(core) = self.0.get() else { return Ok(()) };
        visit.call(&core.blocks)?;
        visit.call(&core.empty)?;
        core.waiting.iter().try_for_each(|state| visit.call(state))
    }
}
