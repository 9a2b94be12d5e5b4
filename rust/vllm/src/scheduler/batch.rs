//! [`DecodeBatch`]: an engine's running requests that decode.

use std::sync::Mutex;

use hybrid_blocks_interop::integrity_error;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyList, PySet, PyType};

use crate::hooks::SchedulerHooks;
use crate::manager::RustKVCacheManager;
use crate::request::{self, RequestView};

use super::advance;
use super::extras::Extras;
use super::row::{Row, Rows};
use super::schedule::{self, ScheduledDecodes};
use super::update::{self, TakenOutputs};

/// vLLM's states of requests.
pub(super) struct States {
    pub(super) running: Py<PyAny>,
    pub(super) preempted: Py<PyAny>,
    pub(super) stopped: Py<PyAny>,
    pub(super) length_capped: Py<PyAny>,
}

/// How an engine schedules; what a release of vLLM does differently included.
#[derive(FromPyObject)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the engine")]
pub(super) struct Rules {
    pub(super) max_model_len: i64,
    pub(super) num_lookahead_tokens: u32,
    pub(super) num_spec_tokens: usize,
    /// Slots of a batch that a drafter takes beside the tokens of a request.
    pub(super) draft_slots: i64,
    /// Tokens of a request in a step, at most; 0 for no limit.
    pub(super) long_prefill_token_threshold: i64,
    /// Steps from one decode of a request to its next; 0 for no limit.
    pub(super) decode_stagger: i64,
    pub(super) is_async: bool,
    /// Whether workers are sent the tokens that others sampled.
    pub(super) sends_tokens: bool,
    /// Whether tokens after a stop count as never computed, and no longer as in flight.
    pub(super) takes_back_trimmed: bool,
    /// Whether full blocks are committed with their outputs, although nothing is scheduled ahead.
    pub(super) commits_outputs: bool,
    pub(super) detailed_spec_metrics: bool,
}

/// The facts of the engine that decide how its requests decode, and their state between steps.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct DecodeBatch {
    pub(super) manager: Py<RustKVCacheManager>,
    /// vLLM's `Request`, which shows the counts that are kept of it.
    pub(super) request_class: Py<PyType>,
    /// Class `EngineCoreOutput` of vLLM.
    pub(super) output_class: Py<PyType>,
    /// Function `check_stop` of vLLM.
    pub(super) check_stop: Py<PyAny>,
    /// `ensure_cache_available` of vLLM's connector for outputs of the encoder.
    ensure_encoded: Option<Py<PyAny>>,
    pub(super) states: States,
    pub(super) rules: Rules,
    /// Taken out while a call works on them.
    rows: Mutex<Rows>,
}

impl DecodeBatch {
    /// Whether the outputs of the encoder that a request needs are here; asks where they come from.
    pub(super) fn has_encoder_outputs(
        &self,
        row: &Row,
        request: &RequestView<'_, '_>,
    ) -> PyResult<bool> {
        let Some(ensure) = self.ensure_encoded.as_ref().filter(|_| row.has_images) else {
            return Ok(true);
        };
        let arguments = (request.object, row.counts.num_certain());
        ensure.bind(request.object.py()).call1(arguments)?.is_truthy()
    }

    /// Whether an output of the encoder may be missing. Images end with the prompt at the latest.
    pub(super) fn may_miss_encoder_outputs(&self, row: &Row) -> bool {
        self.ensure_encoded.is_some() && row.has_images && row.counts.num_certain() < row.num_prompt
    }

    /// Works on the rows. A call that fails leaves none: they are read again.
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
    #[pyo3(signature = (manager, *, request_class, output_class, check_stop, ensure_encoded, states, rules))]
    fn new(
        manager: Py<RustKVCacheManager>,
        request_class: Bound<'_, PyType>,
        output_class: Py<PyType>,
        check_stop: Py<PyAny>,
        ensure_encoded: Option<Py<PyAny>>,
        states: [Py<PyAny>; 4],
        rules: Rules,
    ) -> PyResult<Self> {
        let [running, preempted, stopped, length_capped] = states;
        request::show(&request_class)?;
        Ok(Self {
            manager,
            request_class: request_class.unbind(),
            output_class,
            check_stop,
            ensure_encoded,
            states: States { running, preempted, stopped, length_capped },
            rules,
            rows: Mutex::default(),
        })
    }

    fn schedule(
        &self,
        running: &Bound<'_, PyList>,
        token_budget: i64,
        input_budget: i64,
        step_number: i64,
        previous: Option<&Bound<'_, PySet>>,
        leaves_last: bool,
    ) -> PyResult<ScheduledDecodes> {
        self.with_rows(|rows| {
            let limits = schedule::Limits { token_budget, input_budget, step_number, leaves_last };
            schedule::schedule(self, rows, running, &limits, previous)
        })
    }

    fn advance(
        &self,
        drafts: &Bound<'_, PyList>,
        step_number: i64,
        fence: Option<i64>,
    ) -> PyResult<()> {
        self.with_rows(|rows| advance::advance(self, rows, drafts, step_number, fence))
    }

    #[pyo3(signature = (scheduler, requests, num_scheduled_tokens, index_of, sampled, extras))]
    fn take_outputs(
        &self,
        scheduler: &Bound<'_, PyAny>,
        requests: &Bound<'_, PyDict>,
        num_scheduled_tokens: &Bound<'_, PyDict>,
        index_of: &Bound<'_, PyDict>,
        sampled: &Bound<'_, PyList>,
        extras: Extras<'_>,
    ) -> PyResult<TakenOutputs> {
        self.with_rows(|rows| {
            let step = update::Step {
                scheduler: SchedulerHooks(scheduler),
                requests,
                index_of,
                sampled,
                extras: &extras,
            };
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
        visit.call(&self.request_class)?;
        visit.call(&self.output_class)?;
        if let Some(ensure) = &self.ensure_encoded {
            visit.call(ensure)?;
        }
        let Ok(rows) = self.rows.try_lock() else { return Ok(()) };
        rows.0.iter().try_for_each(|row| row.traverse(&visit))
    }

    fn __clear__(&self) {
        let rows = self.rows.try_lock().map(|mut rows| std::mem::take(&mut *rows));
        drop(rows);
    }
}
