//! [`DecodeBatch`]: an engine's running requests that decode one token a step.

use std::sync::Mutex;

use hybrid_blocks_interop::integrity_error;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyList, PySet, PyType};

use crate::manager::RustKVCacheManager;

use super::row::Rows;
use super::schedule::{self, ScheduledDecodes};
use super::update::{self, TakenOutputs};

/// vLLM's states of requests.
pub(super) struct States {
    pub(super) running: Py<PyAny>,
    pub(super) preempted: Py<PyAny>,
    pub(super) stopped: Py<PyAny>,
    pub(super) length_capped: Py<PyAny>,
}

/// What of the engine decides how its requests decode, and what is kept of them between steps.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct DecodeBatch {
    pub(super) manager: Py<RustKVCacheManager>,
    /// vLLM's `EngineCoreOutput`.
    pub(super) output_class: Py<PyType>,
    pub(super) states: States,
    pub(super) max_model_len: i64,
    pub(super) hash_block_size: usize,
    pub(super) num_hash_lookahead: usize,
    pub(super) is_async: bool,
    /// Taken out while a call works on them.
    rows: Mutex<Rows>,
}

impl DecodeBatch {
    /// Work on the rows. A call that fails leaves none: they are read again.
    fn with_rows<R>(&self, call: impl FnOnce(&mut Rows) -> PyResult<R>) -> PyResult<R> {
        let lost = |_| integrity_error("an earlier step panicked; restart the engine".to_owned());
        let mut rows = std::mem::take(&mut *self.rows.lock().map_err(lost)?);
        let result = call(&mut rows)?;
        let before = std::mem::replace(&mut *self.rows.lock().map_err(lost)?, rows);
        drop(before);
        Ok(result)
    }
}

#[pymethods]
impl DecodeBatch {
    #[new]
    #[pyo3(signature = (
        manager, *, output_class, states, max_model_len, hash_block_size, num_hash_lookahead_tokens,
        is_async
    ))]
    fn new(
        manager: Py<RustKVCacheManager>,
        output_class: Py<PyType>,
        states: [Py<PyAny>; 4],
        max_model_len: i64,
        hash_block_size: usize,
        num_hash_lookahead_tokens: usize,
        is_async: bool,
    ) -> Self {
        let [running, preempted, stopped, length_capped] = states;
        Self {
            manager,
            output_class,
            states: States { running, preempted, stopped, length_capped },
            max_model_len,
            hash_block_size,
            num_hash_lookahead: num_hash_lookahead_tokens,
            is_async,
            rows: Mutex::default(),
        }
    }

    fn schedule(
        &self,
        running: &Bound<'_, PyList>,
        max_requests: usize,
        token_budget: usize,
        previous: Option<&Bound<'_, PySet>>,
    ) -> PyResult<ScheduledDecodes> {
        self.with_rows(|rows| {
            schedule::schedule(self, rows, running, max_requests, token_budget, previous)
        })
    }

    fn take_outputs(
        &self,
        scheduler: &Bound<'_, PyAny>,
        requests: &Bound<'_, PyDict>,
        num_scheduled_tokens: &Bound<'_, PyDict>,
        index_of: &Bound<'_, PyDict>,
        sampled: &Bound<'_, PyList>,
    ) -> PyResult<TakenOutputs> {
        self.with_rows(|rows| {
            let step = update::Step { scheduler, requests, index_of, sampled };
            update::take_outputs(self, rows, &step, num_scheduled_tokens)
        })
    }

    fn forget(&self) -> PyResult<()> {
        self.with_rows(|rows| {
            *rows = Rows::default();
            Ok(())
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.manager)?;
        visit.call(&self.output_class)?;
        let Ok(rows) = self.rows.try_lock() else { return Ok(()) };
        rows.0.iter().try_for_each(|row| row.traverse(&visit))
    }

    fn __clear__(&self) {
        let rows = self.rows.try_lock().map(|mut rows| std::mem::take(&mut *rows));
        drop(rows);
    }
}
