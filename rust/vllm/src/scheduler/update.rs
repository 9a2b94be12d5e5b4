//! The model's output of a step: tokens of each request, and which are done.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::dict::BoundDictIterator;
use pyo3::types::{PyDict, PyList};

use crate::hooks::SchedulerHooks;
use crate::manager::RustKVCacheManager;
use crate::request::{Counts, RequestView};

use super::append::append;
use super::batch::DecodeBatch;
use super::drafts::{SpecCounts, settle};
use super::extras::Extras;
use super::row::{Row, Rows};

/// Outputs of the requests that are dealt with.
#[pyclass(frozen, get_all, module = "hybrid_blocks._core.vllm")]
pub(crate) struct TakenOutputs {
    /// Requests of the step, in its order, that are dealt with.
    num_seen: usize,
    /// Their outputs by client.
    outputs: Py<PyDict>,
    /// Requests that ended, and that the scheduler must take from its running ones.
    stopped: Py<PyList>,
    /// The outcome of their drafts.
    spec_counts: SpecCounts,
}

/// The inputs from the scheduler and the model on a step.
pub(super) struct Step<'a, 'py> {
    pub(super) scheduler: SchedulerHooks<'a, 'py>,
    pub(super) requests: &'a Bound<'py, PyDict>,
    pub(super) index_of: &'a Bound<'py, PyDict>,
    pub(super) sampled: &'a Bound<'py, PyList>,
    pub(super) extras: &'a Extras<'py>,
}

/// The receiver of an output.
enum Recipient {
    /// The row at this index.
    Row(usize),
    /// A request that has no row yet, or none any more.
    Other(Box<Row>),
    /// A request whose prompt is not done.
    Prefilling,
    /// A request that takes no output any more.
    Ended,
    /// No part knows of the request any more.
    Gone,
    /// Anything but a request that decodes: the rest is vLLM's.
    Unusual,
}

/// The result of a step for a request.
enum Outcome<'py> {
    Nothing,
    Tokens(Sampled<'py>),
    /// Anything but tokens: the rest is vLLM's.
    Unusual,
}

/// The sampled tokens of a request, and its place in the batch.
struct Sampled<'py> {
    index: usize,
    list: Bound<'py, PyList>,
}

/// Places of requests in the batch. As a rule they are asked for in its order.
struct Places<'py> {
    of: Bound<'py, PyDict>,
    /// From the place after the last one asked for; `None` once the order was another.
    following: Option<BoundDictIterator<'py>>,
}

impl<'py> Places<'py> {
    fn find(&mut self, id: &Bound<'py, PyAny>) -> PyResult<Option<usize>> {
        if let Some(following) = &mut self.following {
            match following.next() {
                Some((next, place)) if next.is(id) => return place.extract().map(Some),
                _ => self.following = None,
            }
        }
        self.of.get_item(id)?.map(|place| place.extract()).transpose()
    }
}

/// The state of a row after an output.
struct After {
    counts: Counts,
    is_new: bool,
    has_cached_inputs: bool,
}

/// Takes in outputs up to the first request that got more than tokens.
pub(super) fn take_outputs(
    batch: &DecodeBatch,
    rows: &mut Rows,
    step: &Step<'_, '_>,
    num_scheduled_tokens: &Bound<'_, PyDict>,
) -> PyResult<TakenOutputs> {
    let py = num_scheduled_tokens.py();
    let mut told = Told {
        outputs: PyDict::new(py),
        latest: None,
        stopped: PyList::empty(py),
        spec_counts: SpecCounts::new(batch.rules.num_spec_tokens),
    };
    let mut places = Places { of: step.index_of.clone(), following: Some(step.index_of.iter()) };
    let mut tokens = Vec::new();
    let mut num_seen = 0;
    let mut at = 0;
    for (id, num_scheduled) in num_scheduled_tokens {
        let num_scheduled: i64 = num_scheduled.extract()?;
        let recipient = recipient(batch, rows, &mut at, step, &id)?;
        let place = places.find(&id)?;
        let row = match &recipient {
            Recipient::Row(index) => &rows.0[*index],
            Recipient::Other(row) => row,
            Recipient::Prefilling | Recipient::Ended | Recipient::Gone => {
                num_seen += 1;
                if let Some(object) = step.requests.get_item(&id)? {
                    let request = RequestView::new(&object)?;
                    request.set_num_in_flight(request.num_in_flight()? - num_scheduled)?;
                    if matches!(recipient, Recipient::Prefilling) {
                        step.extras.note_nans(&request, &id)?;
                        if request.has_encoder_inputs()? {
                            step.scheduler.free_inputs(request.object)?;
                        }
                    }
                }
                continue;
            }
            Recipient::Unusual => break,
        };
        let sampled = match step.outcome(place, &mut tokens)? {
            Outcome::Nothing if step.extras.is_about_prompt(&id)? => break,
            Outcome::Nothing => None,
            Outcome::Tokens(sampled) => Some(sampled),
            Outcome::Unusual => break,
        };
        num_seen += 1;
        let sampled = sampled.map(|sampled| (sampled, &*tokens));
        let after = told.take(batch, row, step, &id, num_scheduled, sampled)?;
        if let Recipient::Row(index) = recipient {
            if let Some(after) = after {
                let row = &mut rows.0[index];
                row.counts = after.counts;
                row.is_new = after.is_new;
                row.has_cached_inputs = after.has_cached_inputs;
            } else {
                drop(rows.0.remove(index));
                at = index;
            }
        }
    }
    let Told { outputs, stopped, spec_counts, .. } = told;
    Ok(TakenOutputs { num_seen, outputs: outputs.unbind(), stopped: stopped.unbind(), spec_counts })
}

/// The outputs for clients and the scheduler, as they grow.
struct Told<'py> {
    outputs: Bound<'py, PyDict>,
    /// The client of the latest output, and the list of its outputs.
    latest: Option<(Py<PyAny>, Bound<'py, PyList>)>,
    stopped: Bound<'py, PyList>,
    spec_counts: SpecCounts,
}

impl<'py> Told<'py> {
    /// Takes in a request's output; returns nothing if the request ended.
    fn take(
        &mut self,
        batch: &DecodeBatch,
        row: &Row,
        step: &Step<'_, 'py>,
        id: &Bound<'py, PyAny>,
        num_scheduled: i64,
        sampled: Option<(Sampled<'py>, &[i64])>,
    ) -> PyResult<Option<After>> {
        let py = id.py();
        let request = row.view(py);
        let mut counts = row.counts;
        counts.in_flight -= num_scheduled;
        if let Some((_, tokens)) = &sampled
            && batch.rules.num_spec_tokens > 0
        {
            let (extras, spec) = (step.extras, &mut self.spec_counts);
            settle(&batch.rules, row, id, extras, tokens.len(), &mut counts, spec)?;
        }
        row.show(counts);
        let has_cached_inputs =
            row.has_cached_inputs && step.scheduler.free_inputs(request.object)?;
        let mut is_new = row.is_new | step.extras.note_nans(&request, id)?;
        let mut is_done = false;
        if let Some((Sampled { index, list }, tokens)) = sampled {
            is_done = append(batch, row, &request, &mut counts, tokens, &list)?;
            if row.has_grammar {
                is_done |= !step.scheduler.accepts(request.object, &list)?;
            }
            let output = batch.output_class.bind(py).call1((id, &list))?;
            step.extras.add(&output, id, index, list.len(), row.wants_logprobs)?;
            if is_new {
                is_new = describe(batch, &request, &output)?;
            }
            if is_done {
                step.scheduler.end(request.object, &output)?;
                self.stopped.append(request.object)?;
            }
            self.tell(&row.client, output)?;
        }
        Ok((!is_done).then_some(After { counts, is_new, has_cached_inputs }))
    }

    /// Adds an output to those of its client.
    fn tell(&mut self, client: &Py<PyAny>, output: Bound<'py, PyAny>) -> PyResult<()> {
        let py = output.py();
        if let Some((same, list)) = &self.latest
            && same.is(client)
        {
            return list.append(output);
        }
        let client_object = client.bind(py);
        let list = if let Some(list) = self.outputs.get_item(client_object)? {
            list.cast_into()?
        } else {
            let list = PyList::empty(py);
            self.outputs.set_item(client_object, &list)?;
            list
        };
        list.append(output)?;
        self.latest = Some((client.clone_ref(py), list));
        Ok(())
    }
}

/// Finds the requests that get an output. Changes only rows that are out of date; `at` follows the
/// rows.
fn recipient(
    batch: &DecodeBatch,
    rows: &mut Rows,
    at: &mut usize,
    step: &Step<'_, '_>,
    id: &Bound<'_, PyAny>,
) -> PyResult<Recipient> {
    let py = id.py();
    let found = rows.find(*at, id);
    if let Some(index) = found {
        *at = index + 1;
        let row = &mut rows.0[index];
        // A running request is among the scheduler's requests.
        if row.stop.is_some() && row.is_running(&batch.states.running, py)? && row.is_current() {
            return Ok(Recipient::Row(index));
        }
    }
    let Some(object) = step.requests.get_item(id)? else { return Ok(Recipient::Gone) };
    let request = RequestView::new(&object)?;
    if request.num_stale()? > 0 {
        return Ok(Recipient::Unusual);
    }
    let status = request.status()?;
    if !status.is(&batch.states.running) {
        let is_finished = status.gt(&batch.states.preempted)?;
        return Ok(if is_finished { Recipient::Ended } else { Recipient::Unusual });
    }
    let row = Row::read(batch, &request)?;
    match (row.filter(|row| row.stop.is_some()), found) {
        (Some(row), Some(index)) if rows.0[index].request.is(&object) => {
            rows.0[index] = row;
            Ok(Recipient::Row(index))
        }
        (Some(row), _) => Ok(Recipient::Other(Box::new(row))),
        (None, _) => {
            let place = step.index_of.get_item(id)?.map(|place| place.extract()).transpose()?;
            let outcome = step.outcome(place, &mut Vec::new())?;
            let gets_nothing =
                matches!(outcome, Outcome::Nothing) && !step.extras.is_about_prompt(id)?;
            Ok(if gets_nothing { Recipient::Prefilling } else { Recipient::Unusual })
        }
    }
}

impl<'py> Step<'_, 'py> {
    /// Reads the output of the request at a place of the batch; `tokens` are those of its list
    /// then.
    fn outcome(&self, place: Option<usize>, tokens: &mut Vec<i64>) -> PyResult<Outcome<'py>> {
        let Some(index) = place else { return Ok(Outcome::Unusual) };
        let Ok(list) = self.sampled.get_item(index)?.cast_into::<PyList>() else {
            return Ok(Outcome::Unusual);
        };
        if list.is_empty() {
            return Ok(Outcome::Nothing);
        }
        tokens.clear();
        for token in &list {
            let Ok(token) = token.extract() else { return Ok(Outcome::Unusual) };
            tokens.push(token);
        }
        Ok(Outcome::Tokens(Sampled { index, list }))
    }
}

/// Adds the extras of a request beside its token; returns whether more will come of its next one.
fn describe(
    batch: &DecodeBatch,
    request: &RequestView<'_, '_>,
    output: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let py = output.py();
    if !request.prefill_stats()?.is_none() {
        let stats = request.object.call_method0(intern!(py, "take_prefill_stats"))?;
        let manager = batch.manager.bind(py);
        let cached = RustKVCacheManager::estimate_cached_tokens(manager, request.object)?;
        stats.call_method1(intern!(py, "finalize"), (cached,))?;
        output.setattr(intern!(py, "prefill_stats"), stats)?;
    }
    if request.has_events()? {
        let events = request.object.call_method0(intern!(py, "take_events"))?;
        output.setattr(intern!(py, "events"), events)?;
    }
    let trace_headers = request.trace_headers()?;
    let num_nans = request.num_nans()?;
    let has_more = !trace_headers.is_none() || num_nans != 0;
    if !trace_headers.is_none() {
        output.setattr(intern!(py, "trace_headers"), trace_headers)?;
    }
    if num_nans != 0 {
        output.setattr(intern!(py, "num_nans_in_logits"), num_nans)?;
    }
    Ok(has_more)
}
