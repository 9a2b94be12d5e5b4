//! One step of the running requests: room for a token each.

use hybrid_blocks::BlockId;
use hybrid_blocks::vllm::RequestProgress;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyTuple};

use crate::manager::{Room, RustKVCacheManager};
use crate::request::{RequestView, count};

use super::batch::DecodeBatch;

/// What the step's output says of them, by request in the order of the running.
#[pyclass(frozen, get_all, module = "hybrid_blocks._core.vllm")]
pub(crate) struct ScheduledDecodes {
    /// Running requests that are dealt with, some of which have nothing to do in this step.
    num_seen: usize,
    num_scheduled_tokens: Py<PyDict>,
    req_ids: Py<PyList>,
    new_block_ids: Py<PyList>,
    num_computed_tokens: Py<PyList>,
    num_output_tokens: Py<PyList>,
    /// All tokens of requests that the step before had not scheduled.
    all_token_ids: Py<PyDict>,
    has_structured_output: bool,
    pending_structured_output: bool,
}

/// What a running request does in this step.
enum Action<'py> {
    /// It waits for outputs, or has come to its end.
    Idle,
    Decode(Decode<'py>),
    /// Anything but one token: the rest is vLLM's.
    Unusual,
}

/// A request that decodes one token, with the counts before it does.
struct Decode<'py> {
    num_computed: i64,
    num_placeholders: i64,
    tokens: Bound<'py, PyList>,
}

/// Schedule running requests up to the first that does anything but decode one token, or for which
/// there is no room.
pub(super) fn schedule(
    batch: &DecodeBatch,
    running: &Bound<'_, PyList>,
    max_requests: usize,
    token_budget: usize,
    previous: Option<&Bound<'_, PySet>>,
) -> PyResult<ScheduledDecodes> {
    let py = running.py();
    let manager = batch.manager.bind(py);
    let (one, none) = (1i64.into_pyobject(py)?, py.None().into_bound(py));
    let (scheduled, all_token_ids) = (PyDict::new(py), PyDict::new(py));
    let (ids, new_blocks) = (PyList::empty(py), PyList::empty(py));
    let (computed, outputs) = (PyList::empty(py), PyList::empty(py));
    let (mut has_structured_output, mut pending_structured_output) = (false, false);
    let mut num_seen = 0;
    for object in running.iter().take(max_requests) {
        if ids.len() == token_budget {
            break;
        }
        let request = RequestView::new(&object)?;
        let decode = match action(batch, &request)? {
            Action::Idle => {
                num_seen += 1;
                continue;
            }
            Action::Unusual => break,
            Action::Decode(decode) => decode,
        };
        let id = request.id()?;
        let num_in_flight = request.num_in_flight()?;
        let progress = RequestProgress {
            num_computed: u32::try_from(decode.num_computed)?,
            num_in_flight: u32::try_from(num_in_flight)?,
            ..RequestProgress::default()
        };
        match RustKVCacheManager::extend(manager, &request, progress, 1)? {
            Room::Unchanged => new_blocks.append(&none)?,
            Room::New(ids) => new_blocks.append(new_block_ids(py, &ids)?)?,
            Room::None => break,
        }
        num_seen += 1;
        scheduled.set_item(&id, &one)?;
        computed.append(decode.num_computed)?;
        outputs.append(count(&request.output_tokens()?) + decode.num_placeholders)?;
        if let Some(previous) = previous
            && !previous.contains(&id)?
        {
            all_token_ids.set_item(&id, decode.tokens.get_slice(0, usize::MAX))?;
        }
        ids.append(id)?;
        if request.has_grammar()? {
            has_structured_output = true;
            pending_structured_output |= batch.is_async && decode.num_placeholders > 0;
        }
        request.set_num_computed(decode.num_computed + 1)?;
        request.set_num_in_flight(num_in_flight + 1)?;
        if batch.is_async {
            request.set_num_placeholders(decode.num_placeholders + 1)?;
        }
    }
    Ok(ScheduledDecodes {
        num_seen,
        num_scheduled_tokens: scheduled.unbind(),
        req_ids: ids.unbind(),
        new_block_ids: new_blocks.unbind(),
        num_computed_tokens: computed.unbind(),
        num_output_tokens: outputs.unbind(),
        all_token_ids: all_token_ids.unbind(),
        has_structured_output,
        pending_structured_output,
    })
}

fn action<'py>(batch: &DecodeBatch, request: &RequestView<'_, 'py>) -> PyResult<Action<'py>> {
    let num_placeholders = request.num_placeholders()?;
    let num_computed = request.num_computed()?;
    let num_prompt = i64::from(request.num_prompt()?);
    // The outputs in flight reach the limit whatever they turn out to be.
    if num_placeholders > 0
        && num_computed + 2 - num_placeholders >= num_prompt + request.max_tokens()?
    {
        return Ok(Action::Idle);
    }
    if num_computed < num_prompt
        || request.is_prefill_chunk()?
        || request.has_drafts()?
        || request.has_encoder_inputs()?
    {
        return Ok(Action::Unusual);
    }
    let tokens = request.tokens()?;
    let num_new = count(&tokens) + num_placeholders - num_computed;
    // The sampled token needs a position too.
    Ok(match num_new.min(batch.max_model_len - num_computed - 1) {
        0 => Action::Idle,
        1 => Action::Decode(Decode { num_computed, num_placeholders, tokens }),
        _ => Action::Unusual,
    })
}

/// Ids by group, or `None` where there are none.
fn new_block_ids<'py>(
    py: Python<'py>,
    ids: &[Vec<BlockId>],
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    if ids.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let lists = ids.iter().map(|ids| PyList::new(py, ids.iter().map(|id| id.0)));
    PyTuple::new(py, lists.collect::<PyResult<Vec<_>>>()?).map(Some)
}
