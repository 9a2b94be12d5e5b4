//! What the model made of a step: a token each, and who is done.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::hasher::RequestHasher;
use crate::manager::RustKVCacheManager;
use crate::request::{RequestView, count};

use super::batch::DecodeBatch;
use super::stop::{self, Stop};

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

/// What a step brought a request.
enum Outcome<'py> {
    /// Nothing: the prompt is not done yet, or the request is gone.
    Nothing,
    Token(Token<'py>),
    /// Anything but one token: the rest is vLLM's.
    Unusual,
}

struct Token<'py> {
    list: Bound<'py, PyList>,
    sampling: Bound<'py, PyAny>,
}

/// Take in outputs up to those of the first request that got anything but one token.
pub(super) fn take_outputs(
    batch: &DecodeBatch,
    scheduler: &Bound<'_, PyAny>,
    requests: &Bound<'_, PyDict>,
    num_scheduled_tokens: &Bound<'_, PyDict>,
    index_of: &Bound<'_, PyDict>,
    sampled: &Bound<'_, PyList>,
) -> PyResult<TakenOutputs> {
    let py = scheduler.py();
    let (outputs, stopped) = (PyDict::new(py), PyList::empty(py));
    let mut latest: Option<(Bound<'_, PyAny>, Bound<'_, PyList>)> = None;
    let mut num_seen = 0;
    for (id, num_scheduled) in num_scheduled_tokens {
        let Some(object) = requests.get_item(&id)? else {
            num_seen += 1;
            continue;
        };
        let request = RequestView::new(&object)?;
        let outcome = outcome(batch, &request, &id, index_of, sampled)?;
        if matches!(outcome, Outcome::Unusual) {
            break;
        }
        num_seen += 1;
        let num_in_flight = request.num_in_flight()? - num_scheduled.extract::<i64>()?;
        request.set_num_in_flight(num_in_flight)?;
        let Outcome::Token(token) = outcome else { continue };
        let stop = append(batch, &request, &token, num_in_flight)?;
        let output = batch.output_class.bind(py).call1((&id, &token.list))?;
        describe(batch, &request, &output)?;
        if let Some(stop) = stop {
            end(scheduler, &request, &stop, &output, &token)?;
            stopped.append(&object)?;
        }
        let client = request.client()?;
        match &latest {
            Some((same, list)) if same.is(&client) => list.append(output)?,
            _ => latest = Some(append_for(&outputs, client, output)?),
        }
    }
    Ok(TakenOutputs { num_seen, outputs: outputs.unbind(), stopped: stopped.unbind() })
}

fn append_for<'py>(
    outputs: &Bound<'py, PyDict>,
    client: Bound<'py, PyAny>,
    output: Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyList>)> {
    let list = if let Some(list) = outputs.get_item(&client)? {
        list.cast_into()?
    } else {
        let list = PyList::empty(outputs.py());
        outputs.set_item(&client, &list)?;
        list
    };
    list.append(output)?;
    Ok((client, list))
}

/// Look at what a request got. Changes nothing.
fn outcome<'py>(
    batch: &DecodeBatch,
    request: &RequestView<'_, 'py>,
    id: &Bound<'py, PyAny>,
    index_of: &Bound<'py, PyDict>,
    sampled: &Bound<'py, PyList>,
) -> PyResult<Outcome<'py>> {
    if request.num_stale()? > 0 {
        return Ok(Outcome::Unusual);
    }
    let status = request.status()?;
    if !status.is(&batch.states.running) {
        let is_finished = status.gt(&batch.states.preempted)?;
        return Ok(if is_finished { Outcome::Nothing } else { Outcome::Unusual });
    }
    let Some(index) = index_of.get_item(id)? else { return Ok(Outcome::Unusual) };
    let Ok(list) = sampled.get_item(index.extract()?)?.cast_into::<PyList>() else {
        return Ok(Outcome::Unusual);
    };
    if request.has_encoder_inputs()? {
        return Ok(Outcome::Unusual);
    }
    match list.len() {
        0 => return Ok(Outcome::Nothing),
        1 => {}
        _ => return Ok(Outcome::Unusual),
    }
    let sampling = request.sampling()?;
    if sampling.is_none()
        || stop::is_unusual(&sampling)?
        || request.is_resumable()?
        || request.has_grammar()?
    {
        return Ok(Outcome::Unusual);
    }
    Ok(Outcome::Token(Token { list, sampling }))
}

/// Append the token, hash and cache what it completes, and tell whether it is the last.
fn append(
    batch: &DecodeBatch,
    request: &RequestView<'_, '_>,
    token: &Token<'_>,
    num_in_flight: i64,
) -> PyResult<Option<Stop>> {
    let py = token.list.py();
    let id = token.list.get_item(0)?;
    let (tokens, outputs) = (request.tokens()?, request.output_tokens()?);
    outputs.append(&id)?;
    tokens.append(&id)?;
    let hashable = tokens.len().saturating_sub(batch.num_hash_lookahead);
    if hashable.is_multiple_of(batch.hash_block_size) {
        hash(request, &tokens)?;
    }
    let stop = stop::reason(
        request,
        &token.sampling,
        &id,
        count(&tokens),
        count(&outputs),
        batch.max_model_len,
    )?;
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
    let num_placeholders = request.num_placeholders()?;
    if num_placeholders > 0 {
        request.set_num_placeholders(num_placeholders - 1)?;
        let num_done = u32::try_from(request.num_computed()? - num_in_flight)?;
        RustKVCacheManager::commit(batch.manager.bind(py), request, num_done)?;
    }
    Ok(stop)
}

/// Hash what the latest token completes.
fn hash<'py>(request: &RequestView<'_, 'py>, tokens: &Bound<'py, PyList>) -> PyResult<()> {
    let hasher = request.block_hasher()?;
    if hasher.is_none() {
        return Ok(());
    }
    let hashes = request.block_hashes()?;
    if let (Ok(hasher), Ok(hashes)) = (hasher.cast::<RequestHasher>(), hashes.cast::<PyList>()) {
        if let Some(new) = RequestHasher::new_hashes(hasher, request, tokens, hashes)? {
            new.iter().try_for_each(|hash| hashes.append(hash))?;
        }
        return Ok(());
    }
    request.object.call_method0(intern!(request.object.py(), "update_block_hashes")).map(drop)
}

/// Say what there is to say of a request beside its token: rarely anything.
fn describe(
    batch: &DecodeBatch,
    request: &RequestView<'_, '_>,
    output: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = output.py();
    if !request.prefill_stats()?.is_none() {
        let stats = request.object.call_method0(intern!(py, "take_prefill_stats"))?;
        let cached =
            RustKVCacheManager::estimate_cached_tokens(batch.manager.bind(py), request.object)?;
        stats.call_method1(intern!(py, "finalize"), (cached,))?;
        output.setattr(intern!(py, "prefill_stats"), stats)?;
    }
    if request.has_events()? {
        let events = request.object.call_method0(intern!(py, "take_events"))?;
        output.setattr(intern!(py, "events"), events)?;
    }
    let trace_headers = request.trace_headers()?;
    if !trace_headers.is_none() {
        output.setattr(intern!(py, "trace_headers"), trace_headers)?;
    }
    let num_nans = request.num_nans()?;
    if num_nans != 0 {
        output.setattr(intern!(py, "num_nans_in_logits"), num_nans)?;
    }
    Ok(())
}

/// Let the scheduler free a request that is done, and say why it is.
fn end(
    scheduler: &Bound<'_, PyAny>,
    request: &RequestView<'_, '_>,
    stop: &Stop,
    output: &Bound<'_, PyAny>,
    token: &Token<'_>,
) -> PyResult<()> {
    let py = output.py();
    let reason = request.object.call_method0(intern!(py, "get_finished_reason"))?;
    output.setattr(intern!(py, "finish_reason"), reason)?;
    if matches!(stop, Stop::Token) {
        output.setattr(intern!(py, "stop_reason"), token.list.get_item(0)?)?;
    }
    let metrics = request.spec_decode_metrics()?;
    output.setattr(intern!(py, "spec_decode_metrics"), metrics)?;
    // Without connectors there are no parameters to hand on.
    scheduler.call_method1(intern!(py, "_free_request"), (request.object,))?;
    Ok(())
}
