//! [`DecodeBatch`]: an engine's running requests that decode one token a step.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyList, PySet, PyType};

use crate::manager::RustKVCacheManager;

use super::schedule::{self, ScheduledDecodes};
use super::update::{self, TakenOutputs};

/// vLLM's states of requests.
pub(super) struct States {
    pub(super) running: Py<PyAny>,
    pub(super) preempted: Py<PyAny>,
    pub(super) stopped: Py<PyAny>,
    pub(super) length_capped: Py<PyAny>,
}

/// What of the engine decides how its requests decode.
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
        }
    }

    fn schedule(
        &self,
        running: &Bound<'_, PyList>,
        max_requests: usize,
        token_budget: usize,
        previous: Option<&Bound<'_, PySet>>,
    ) -> PyResult<ScheduledDecodes> {
        schedule::schedule(self, running, max_requests, token_budget, previous)
    }

    fn take_outputs(
        &self,
        scheduler: &Bound<'_, PyAny>,
        requests: &Bound<'_, PyDict>,
        num_scheduled_tokens: &Bound<'_, PyDict>,
        index_of: &Bound<'_, PyDict>,
        sampled: &Bound<'_, PyList>,
    ) -> PyResult<TakenOutputs> {
        update::take_outputs(self, scheduler, requests, num_scheduled_tokens, index_of, sampled)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.manager)?;
        visit.call(&self.output_class)
    }
}
