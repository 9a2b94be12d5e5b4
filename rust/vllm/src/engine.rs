//! [`Engine`]: the blocks and, at level `manager`, the manager over them, behind one lock.

use std::sync::{Mutex, MutexGuard};

use hybrid_blocks::BlockStore;
use hybrid_blocks::vllm::{self, ManagerConfig};
use hybrid_blocks_interop::{caught, core_error, integrity_error};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

/// State that the Python classes of one vLLM engine share.
///
/// A panic becomes an `IntegrityError` that names the request, and so does every later call: the
/// state is unknown. The lock is never held while a Python object is made or Python code runs.
/// Either may run the garbage collector and, through it, code that waits for this lock.
pub(crate) struct Engine(Mutex<State>);

/// vLLM's rules, over one pool of equal blocks or over slabs.
pub(crate) type Manager = vllm::KvCacheManager<BlockStore>;

#[expect(clippy::large_enum_variant, reason = "an engine has one")]
enum State {
    /// Under vLLM's own managers.
    Pool(BlockStore),
    Managed(Manager),
}

impl Engine {
    pub(crate) fn new(store: BlockStore) -> Self {
        Self(Mutex::new(State::Pool(store)))
    }

    #[inline]
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        self.0
            .lock_py_attached(py)
            .map_err(|_| integrity_error("an earlier call panicked; restart the engine".to_owned()))
    }

    /// Puts a manager over the blocks.
    pub(crate) fn configure(&self, py: Python<'_>, config: ManagerConfig) -> PyResult<()> {
        config.check().map_err(core_error)?;
        let mut state = self.lock(py)?;
        let placeholder = State::Pool(BlockStore::fixed(1).map_err(core_error)?);
        *state = match std::mem::replace(&mut *state, placeholder) {
            State::Pool(store) => State::Managed(Manager::new(store, config).map_err(core_error)?),
            managed @ State::Managed(_) => managed,
        };
        Ok(())
    }

    /// Works on the blocks alone.
    pub(crate) fn store<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut BlockStore) -> R,
    ) -> PyResult<R> {
        let mut state = self.lock(py)?;
        caught(
            // The guard is dropped while a panic unwinds, which poisons the lock.
            move || match &mut *state {
                State::Pool(store) => call(store),
                State::Managed(manager) => call(manager.store_mut()),
            },
            |message| format!("the block pool panicked: {message}; restart the engine"),
        )
    }

    /// Works on a request, which a panic names.
    #[inline]
    pub(crate) fn request<R>(
        &self,
        py: Python<'_>,
        request_id: &str,
        call: impl FnOnce(&mut Manager) -> R,
    ) -> PyResult<R> {
        self.call(py, call, || format!(" at request {request_id:?}"))
    }

    /// Works on state that belongs to no single request.
    #[inline]
    pub(crate) fn manager<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Manager) -> R,
    ) -> PyResult<R> {
        self.call(py, call, String::new)
    }

    #[inline]
    fn call<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Manager) -> R,
        place: impl FnOnce() -> String,
    ) -> PyResult<R> {
        let mut state = self.lock(py)?;
        if let State::Pool(_) = *state {
            return Err(integrity_error("the block manager is not configured".to_owned()));
        }
        caught(
            move || match &mut *state {
                State::Managed(manager) => call(manager),
                State::Pool(_) => unreachable!("the state was just looked at"),
            },
            |message| {
                let place = place();
                format!("the block manager panicked{place}: {message}; restart the engine")
            },
        )
    }
}
