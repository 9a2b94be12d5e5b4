//! [`Core`]: what a manager was started and configured with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hybrid_blocks::vllm::ManagerConfig;
use hybrid_blocks::{BlockId, Digest, Error, Store};
use hybrid_blocks_interop::{core_error, integrity_error};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::config::ConfigFields;
use super::result::{AllocatedBlocks, GroupPools};
use super::{digests, events};
use crate::blocks::Blocks;
use crate::engine::{Engine, Manager};
use crate::hooks::ManagerHooks;
use crate::request::{Named, RequestView};

pub(super) struct Core {
    pub(super) blocks: Py<Blocks>,
    /// The blocks of each group's tables, all of one engine.
    pub(super) pools: GroupPools,
    /// The blocks that each group's keys name: others, where checkpoints have another format.
    pub(super) kept_pools: GroupPools,
    /// The one answer that stands for no blocks at all.
    pub(super) empty: Py<AllocatedBlocks>,
    pub(super) class: Py<PyType>,
    /// States of requests that are to be admitted.
    pub(super) waiting: Vec<Py<PyAny>>,
    pub(super) configured: OnceLock<Configured>,
    /// Requests whose prefill checkpoints get their keys when the next step begins, where events tell of that.
    pub(super) keeping: Mutex<Vec<(u64, Py<PyAny>)>>,
}

/// Answers of the configuration that are asked for in every call.
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the engine")]
pub(super) struct Configured {
    /// Tells this manager from others that a request may have been through.
    number: u64,
    pub(super) num_groups: u32,
    pub(super) watermark_blocks: u32,
    pub(super) heeds_boundary: bool,
    /// Whether a prompt's end is committed in each step that is scheduled before its first output
    /// is known. A request that would resume from there waits for the step after.
    pub(super) repeats_commits: bool,
    pub(super) enable_caching: bool,
    pub(super) enable_events: bool,
    enable_residency: bool,
    /// Whether it matters what clients say of their sessions.
    pub(super) heeds_sessions: bool,
    /// Whether checkpoints are placed by our own rules.
    pub(super) places_checkpoints: bool,
    /// Whether the worker zeroes single blocks, not slabs.
    pub(super) zeroes_blocks: bool,
}

/// A request between two locks, with its digests taken out of the manager.
pub(super) struct Opened {
    pub(super) handle: u64,
    pub(super) digests: Vec<Digest>,
}

/// A request as seen by its handle.
pub(super) enum Look {
    /// The call would change nothing.
    Unchanged,
    Open(Opened),
    /// The manager knows no request by the handle any more.
    Unknown,
}

/// The handle of a request: `hint` if it is current, or else the one that its id names.
pub(super) fn found_or_added(manager: &mut Manager, hint: Option<u64>, id: &str) -> u64 {
    hint.filter(|&handle| manager.id(handle).is_some()).unwrap_or_else(|| manager.add(id))
}

/// Base of the Python class. The cell is empty until `_start` is called. The
/// configuration is read at the first use, so vLLM's objects may change until then.
#[pyclass(frozen, subclass, module = "hybrid_blocks._core.vllm")]
pub(crate) struct RustKVCacheManager(pub(super) OnceLock<Core>);

impl RustKVCacheManager {
    #[inline]
    pub(super) fn core<'a>(slf: &'a Bound<'_, Self>) -> PyResult<(&'a Core, &'a Configured)> {
        if let Some(core) = slf.get().0.get()
            && let Some(configured) = core.configured.get()
        {
            return Ok((core, configured));
        }
        Self::configure(slf)
    }

    /// Works on state that belongs to no single request.
    pub(super) fn on_manager<R>(
        slf: &Bound<'_, Self>,
        call: impl FnOnce(&mut Manager) -> R,
    ) -> PyResult<R> {
        Self::core(slf)?.0.engine().manager(slf.py(), call)
    }

    /// Asks about a request by its id; `None` if it is not known.
    pub(super) fn on_known<R>(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        call: impl FnOnce(&mut Manager, u64) -> R,
    ) -> PyResult<Option<R>> {
        let id = request_id.to_str()?;
        Self::core(slf)?
            .0
            .engine()
            .request(slf.py(), id, |manager| manager.find(id).map(|handle| call(manager, handle)))
    }

    /// Changes a request that may be known by its id.
    pub(super) fn change_known(
        slf: &Bound<'_, Self>,
        request_id: &Bound<'_, PyString>,
        call: impl FnOnce(&mut Manager, u64) -> Result<(), Error>,
    ) -> PyResult<()> {
        Self::on_known(slf, request_id, call)?.unwrap_or(Ok(())).map_err(core_error)
    }

    #[cold]
    fn configure<'a>(slf: &'a Bound<'_, Self>) -> PyResult<(&'a Core, &'a Configured)> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let Some(core) = slf.get().0.get() else {
            return Err(integrity_error("the manager was not started".to_owned()));
        };
        let fields: ConfigFields = ManagerHooks(slf).geometry()?.extract()?;
        let zeroes_blocks = fields.zeroes_blocks;
        let config: ManagerConfig = fields.config()?;
        core.engine().configure(slf.py(), config.clone())?;
        let heeds_sessions = core.engine().manager(slf.py(), |it| it.store().is_slabbed())?;
        let configured = Configured {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            num_groups: config.groups.len() as u32,
            watermark_blocks: config.watermark_blocks,
            heeds_boundary: config.heeds_shared_prefix_boundary(),
            repeats_commits: !config.release.keys_running_state_once,
            enable_caching: config.enable_caching(),
            enable_events: config.enable_events,
            enable_residency: config.enable_residency,
            heeds_sessions,
            places_checkpoints: config.checkpoints.is_some(),
            zeroes_blocks,
        };
        // Another thread may have been first, with the same answer.
        Ok((core, core.configured.get_or_init(|| configured)))
    }
}

impl Core {
    #[inline]
    pub(super) fn engine(&self) -> &Engine {
        self.blocks.get().engine()
    }

    pub(super) fn result<'py>(
        &self,
        py: Python<'py>,
        pools: &GroupPools,
        ids: Vec<Vec<BlockId>>,
    ) -> PyResult<Bound<'py, AllocatedBlocks>> {
        if AllocatedBlocks::is_empty(&ids) {
            return Ok(self.empty.bind(py).clone());
        }
        let (pools, class) = (Arc::clone(pools), self.class.clone_ref(py));
        Bound::new(py, AllocatedBlocks { ids, pools, class })
    }

    /// The handle that a request was last known by here, `hint` if there is one; it may be stale.
    #[inline]
    pub(super) fn handle_of(
        configured: &Configured,
        request: &RequestView<'_, '_>,
        hint: Option<u64>,
    ) -> PyResult<Option<u64>> {
        if hint.is_some() {
            return Ok(hint);
        }
        let Some(state) = request.state()? else { return Ok(None) };
        let named = state.get().named()?;
        Ok((named.manager == configured.number).then_some(named.handle))
    }

    /// Looks at a request by its handle under one lock: either its call would change nothing, or
    /// the request is opened for that call.
    #[inline]
    pub(super) fn look(
        &self,
        py: Python<'_>,
        handle: u64,
        is_noop: impl FnOnce(&Manager) -> bool,
    ) -> PyResult<Look> {
        self.engine().manager(py, |manager| {
            if is_noop(manager) {
                return Look::Unchanged;
            }
            match manager.digests_mut(handle) {
                Ok(digests) => Look::Open(Opened { handle, digests: std::mem::take(digests) }),
                Err(_) => Look::Unknown,
            }
        })
    }

    /// Opens a request and brings its digests up to date. They go back with the next call. A
    /// request that is not known is added. `taken` is what a look under the lock has opened.
    pub(super) fn open(
        &self,
        configured: &Configured,
        request: &RequestView<'_, '_>,
        id: &str,
        taken: Option<Opened>,
    ) -> PyResult<Opened> {
        let mut opened = match taken {
            Some(taken) => taken,
            None => self.find(configured, request, id)?,
        };
        if configured.enable_caching {
            digests::update(&mut opened.digests, request)?;
        }
        Ok(opened)
    }

    /// Finds a request by the handle that it was last known by, or else by its id.
    fn find(
        &self,
        configured: &Configured,
        request: &RequestView<'_, '_>,
        id: &str,
    ) -> PyResult<Opened> {
        let hint = Self::handle_of(configured, request, None)?;
        let (handle, digests) = self.engine().request(request.object.py(), id, |manager| {
            let handle = found_or_added(manager, hint, id);
            (handle, manager.digests_mut(handle).map(std::mem::take))
        })?;
        if hint != Some(handle) {
            let named = Named { manager: configured.number, handle };
            match request.state()? {
                Some(state) => state.get().set_named(named)?,
                None => request.keep(named, Vec::new())?,
            }
        }
        Ok(Opened { handle, digests: digests.map_err(core_error)? })
    }

    /// Works on a request with its digests, which `taken` may hold already. Hands changes of the
    /// prefix cache and of blocks to Python, if an observer needs them.
    pub(super) fn change<R>(
        slf: &Bound<'_, RustKVCacheManager>,
        request: &RequestView<'_, '_>,
        taken: Option<Opened>,
        call: impl FnOnce(&mut Manager, u64) -> Result<R, Error>,
    ) -> PyResult<R> {
        let py = slf.py();
        let (core, configured) = RustKVCacheManager::core(slf)?;
        let id = request.id()?;
        let id = id.to_str()?;
        let Opened { handle, digests } = core.open(configured, request, id, taken)?;
        let (result, changes, residency) = core
            .engine()
            .request(py, id, |manager| {
                *manager.digests_mut(handle)? = digests;
                let result = call(manager, handle);
                let changes =
                    if configured.enable_events { manager.take_events() } else { Vec::new() };
                let residency =
                    if configured.enable_residency { manager.take_residency() } else { Vec::new() };
                Ok((result, changes, residency))
            })?
            .map_err(core_error)?;
        if !changes.is_empty() {
            ManagerHooks(slf).note_events(request.object, events::tuples(py, &changes)?)?;
        }
        if !residency.is_empty() {
            ManagerHooks(slf).note_residency(events::residency(py, &residency)?)?;
        }
        result.map_err(core_error)
    }

    /// Remembers a request that keeps states from inside its chunk.
    pub(super) fn note_keeping(&self, handle: u64, request: &RequestView<'_, '_>) {
        let request = request.object.clone().unbind();
        self.keeping.lock().unwrap_or_else(PoisonError::into_inner).push((handle, request));
    }

    /// Begins a step. Tells of the states that were kept in the last one, each with its request.
    pub(super) fn start_step(slf: &Bound<'_, RustKVCacheManager>) -> PyResult<()> {
        let (py, (core, _)) = (slf.py(), RustKVCacheManager::core(slf)?);
        let keeping =
            std::mem::take(&mut *core.keeping.lock().unwrap_or_else(PoisonError::into_inner));
        let changes = core.engine().manager(py, |manager| {
            manager.start_step();
            if keeping.is_empty() { Vec::new() } else { manager.take_events() }
        })?;
        for own in changes.chunk_by(|one, other| one.handle() == other.handle()) {
            let own_handle = own[0].handle();
            let known = keeping.iter().find(|&&(handle, _)| Some(handle) == own_handle);
            let request = known.map_or_else(|| py.None(), |(_, request)| request.clone_ref(py));
            ManagerHooks(slf).note_events(request.bind(py), events::tuples(py, own)?)?;
        }
        Ok(())
    }
}
