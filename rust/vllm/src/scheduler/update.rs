//! What the model made of a step: a token each, and who is done.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::hasher::RequestHasher;
use crate::manager::RustKVCacheManager;
use crate::request::{RequestView, count};

use super::batch::DecodeBatch;
use super::row::{Counts, Row, Rows};
use super::stop::Stop;

/// Outputs of the requests that are dealt with.
#[pyclass(frozen, get_all, module = "hybrid_blocks._core.vllm")]
pub(crate) struct TakenOutputs {
    /// Requests of the step, in its order, that are dealt with.
    num_seen: usize,
    /// Their outputs by client.
    outputs: Py<PyDict>,
    /// Requests that ended, and that the scheduler must take from its running ones.
    stopped: Py<PyList>,
}

/// What the scheduler and the model say of a step.
pub(super) struct Step<'a, 'py> {
    pub(super) scheduler: &'a Bound<'py, PyAny>,
    pub(super) requests: &'a Bound<'py, PyDict>,
    pub(super) index_of: &'a Bound<'py, PyDict>,
    pub(super) sampled: &'a Bound<'py, PyList>,
}

/// Who an output is for.
enum Recipient {
    /// The row at this index.
    Row(usize),
    /// A request that has no row yet, or none any more.
    Other(Box<Row>),
    /// A request that takes no output, or one that gets none: its prompt is not done.
    Nobody,
    /// Nobody knows of the request any more.
    Gone,
    /// Anything but a request that decodes: the rest is vLLM's.
    Unusual,
}

/// What a step brought a request.
enum Outcome<'py> {
    Nothing,
    Token {
        id: i64,
        list: Bound<'py, PyList>,
    },
    /// Anything but one token: the rest is vLLM's.
    Unusual,
}

/// Take in outputs up to those of the first request that got anything but one token.
pub(super) fn take_outputs(
    batch: &DecodeBatch,
    rows: &mut Rows,
    step: &Step<'_, '_>,
    num_scheduled_tokens: &Bound<'_, PyDict>,
) -> PyResult<TakenOutputs> {
    let py = num_scheduled_tokens.py();
    let (outputs, stopped) = (PyDict::new(py), PyList::empty(py));
    let mut latest: Option<(Py<PyAny>, Bound<'_, PyList>)> = None;
    let mut num_seen = 0;
    let mut at = 0;
    for (id, num_scheduled) in num_scheduled_tokens {
        let recipient = recipient(batch, rows, &mut at, step, &id)?;
        let row = match &recipient {
            Recipient::Row(index) => &rows.0[*index],
            Recipient::Other(row) => row,
            Recipient::Nobody | Recipient::Gone => {
                num_seen += 1;
                if matches!(recipient, Recipient::Nobody)
                    && let Some(object) = step.requests.get_item(&id)?
                {
                    let request = RequestView::new(&object)?;
                    let left = request.num_in_flight()? - num_scheduled.extract::<i64>()?;
                    request.set_num_in_flight(left)?;
                }
                continue;
            }
            Recipient::Unusual => break,
        };
        let outcome = step.outcome(&id)?;
        if matches!(outcome, Outcome::Unusual) {
            break;
        }
        num_seen += 1;
        let mut counts = row.counts;
        counts.in_flight -= num_scheduled.extract::<i64>()?;
        let request = row.view(py);
        request.set_num_in_flight(counts.in_flight)?;
        let mut is_new = row.is_new;
        let mut is_done = false;
        if let Outcome::Token { id: token, list } = outcome {
            let end_of_output = append(batch, row, &request, &mut counts, token, &list)?;
            let output = batch.output_class.bind(py).call1((&id, &list))?;
            if is_new {
                is_new = describe(batch, &request, &output)?;
            }
            if let Some(stop) = end_of_output {
                end(step.scheduler, &request, &stop, &output, &list)?;
                stopped.append(request.object)?;
                is_done = true;
            }
            match &latest {
                Some((same, list)) if same.is(&row.client) => list.append(output)?,
                _ => {
                    let list = append_for(&outputs, row.client.bind(py), output)?;
                    latest = Some((row.client.clone_ref(py), list));
                }
            }
        }
        if let Recipient::Row(index) = recipient {
            if is_done {
                drop(rows.0.remove(index));
                at = index;
            } else {
                let row = &mut rows.0[index];
                (row.counts, row.is_new) = (counts, is_new);
            }
        }
    }
    Ok(TakenOutputs { num_seen, outputs: outputs.unbind(), stopped: stopped.unbind() })
}

fn append_for<'py>(
    outputs: &Bound<'py, PyDict>,
    client: &Bound<'py, PyAny>,
    output: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let list = if let Some(list) = outputs.get_item(client)? {
        list.cast_into()?
    } else {
        let list = PyList::empty(outputs.py());
        outputs.set_item(client, &list)?;
        list
    };
    list.append(output)?;
    Ok(list)
}

/// Look at who gets an output. Changes nothing but rows that are out of date; `at` follows the rows.
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
        let row = &rows.0[index];
        let request = row.view(py);
        // What runs is among the scheduler's requests.
        if row.stop.is_some()
            && request.status()?.is(&batch.states.running)
            && Counts::read(&request)? == row.counts
        {
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
        return Ok(if is_finished { Recipient::Nobody } else { Recipient::Unusual });
    }
    let row = Row::read(&request, Counts::read(&request)?)?;
    match (row.filter(|row| row.stop.is_some()), found) {
        (Some(row), Some(index)) if rows.0[index].request.is(&object) => {
            rows.0[index] = row;
            Ok(Recipient::Row(index))
        }
        (Some(row), _) => Ok(Recipient::Other(Box::new(row))),
        (None, _) => {
            let gets_nothing =
                !request.has_encoder_inputs()? && matches!(step.outcome(id)?, Outcome::Nothing);
            Ok(if gets_nothing { Recipient::Nobody } else { Recipient::Unusual })
        }
    }
}

impl<'py> Step<'_, 'py> {
    /// Look at what a request got.
    fn outcome(&self, id: &Bound<'py, PyAny>) -> PyResult<Outcome<'py>> {
        let Some(index) = self.index_of.get_item(id)? else { return Ok(Outcome::Unusual) };
        let Ok(list) = self.sampled.get_item(index.extract()?)?.cast_into::<PyList>() else {
            return Ok(Outcome::Unusual);
        };
        match list.len() {
            0 => Ok(Outcome::Nothing),
            1 => match list.get_item(0)?.extract() {
                Ok(id) => Ok(Outcome::Token { id, list }),
                Err(_) => Ok(Outcome::Unusual),
            },
            _ => Ok(Outcome::Unusual),
        }
    }
}

/// Append the token, hash and cache what it completes, and tell whether it is the last.
fn append<'py>(
    batch: &DecodeBatch,
    row: &Row,
    request: &RequestView<'_, 'py>,
    counts: &mut Counts,
    token: i64,
    list: &Bound<'py, PyList>,
) -> PyResult<Option<Stop>> {
    let py = list.py();
    let id = list.get_item(0)?;
    let (tokens, outputs) = (row.tokens.bind(py), row.output_tokens.bind(py));
    outputs.append(&id)?;
    tokens.append(&id)?;
    let hashable = tokens.len().saturating_sub(batch.num_hash_lookahead);
    if hashable.is_multiple_of(batch.hash_block_size) {
        hash(request, tokens)?;
    }
    let is_full = count(tokens) >= batch.max_model_len || count(outputs) >= row.max_tokens;
    let stop = row.stop.as_ref().and_then(|rule| rule.reason(token, is_full));
    if let Some(stop) = &stop {
        let status = match stop {
            Stop::EndOfText | Stop::Token => &batch.states.stopped,
            Stop::Length => &batch.states.length_capped,
        };
        request.object.setattr(intern!(py, "status"), status)?;
        if matches!(stop, Stop::Token) {
            request.object.setattr(intern!(py, "stop_reason"), id)?;
        }
    }
    if counts.placeholders > 0 {
        counts.placeholders -= 1;
        request.set_num_placeholders(counts.placeholders)?;
        let num_done = u32::try_from(counts.computed - counts.in_flight)?;
        RustKVCacheManager::commit(batch.manager.bind(py), request, row.handle, num_done)?;
    }
    Ok(stop)
}

/// Hash what the latest token completes.
fn hash<'py>(request: &RequestView<'_, 'py>, tokens: &Bound<'py, PyList>) -> PyResult<()> {
    let hasher = request.block_hasher()?;
    if hasher.is_none() {
        return Ok(());
    }
    let known = request.block_hashes()?;
    if let (Ok(hasher), Ok(known)) = (hasher.cast::<RequestHasher>(), known.cast::<PyList>()) {
        if let Some(new) = RequestHasher::new_hashes(hasher, request, tokens, known)? {
            new.iter().try_for_each(|hash| known.append(hash))?;
        }
        return Ok(());
    }
    request.object.call_method0(intern!(request.object.py(), "update_block_hashes")).map(drop)
}

/// Say what there is to say of a request beside its token; returns whether there will be more to say
/// of its next one.
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

/// Let the scheduler free a request that is done, and say why it is.
fn end(
    scheduler: &Bound<'_, PyAny>,
    request: &RequestView<'_, '_>,
    stop: &Stop,
    output: &Bound<'_, PyAny>,
    token: &Bound<'_, PyList>,
) -> PyResult<()> {
    let py = output.py();
    let reason = request.object.call_method0(intern!(py, "get_finished_reason"))?;
    output.setattr(intern!(py, "finish_reason"), reason)?;
    if matches!(stop, Stop::Token) {
        output.setattr(intern!(py, "stop_reason"), token.get_item(0)?)?;
    }
    output.setattr(intern!(py, "spec_decode_metrics"), request.spec_decode_metrics()?)?;
    // Without connectors there are no parameters to hand on.
    scheduler.call_method1(intern!(py, "_free_request"), (request.object,)).map(drop)
}
