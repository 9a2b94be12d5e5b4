//! One step of the running requests: room for a token each.

use hybrid_blocks::BlockId;
use hybrid_blocks::vllm::RequestProgress;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PySet, PyString, PyTuple};

use crate::manager::{Room, RustKVCacheManager};
use crate::request::{RequestView, count};

use super::batch::DecodeBatch;
use super::row::{Counts, Row, Rows};

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
enum Action {
    /// It waits for outputs, or has come to its end.
    Idle,
    Decode,
    /// Anything but one token: the rest is vLLM's.
    Unusual,
}

/// The step's output, as it grows.
struct Step<'a, 'py> {
    batch: &'a DecodeBatch,
    previous: Option<&'a Bound<'py, PySet>>,
    one: Bound<'py, PyInt>,
    scheduled: Bound<'py, PyDict>,
    all_token_ids: Bound<'py, PyDict>,
    ids: Vec<Bound<'py, PyString>>,
    new_blocks: Vec<Option<Bound<'py, PyTuple>>>,
    computed: Vec<i64>,
    outputs: Vec<i64>,
    has_structured_output: bool,
    pending_structured_output: bool,
}

/// Schedule running requests up to the first that does anything but decode one token, or for which
/// there is no room.
pub(super) fn schedule<'py>(
    batch: &DecodeBatch,
    rows: &mut Rows,
    running: &Bound<'py, PyList>,
    max_requests: usize,
    token_budget: usize,
    previous: Option<&Bound<'py, PySet>>,
) -> PyResult<ScheduledDecodes> {
    let py = running.py();
    let manager = batch.manager.bind(py);
    let most = max_requests.min(running.len());
    let mut step = Step {
        batch,
        previous,
        one: 1i64.into_pyobject(py)?,
        scheduled: PyDict::new(py),
        all_token_ids: PyDict::new(py),
        ids: Vec::with_capacity(most),
        new_blocks: Vec::with_capacity(most),
        computed: Vec::with_capacity(most),
        outputs: Vec::with_capacity(most),
        has_structured_output: false,
        pending_structured_output: false,
    };
    let mut num_seen = 0;
    for object in running.iter().take(max_requests) {
        if step.ids.len() == token_budget || !bring_up(rows, num_seen, &object)? {
            break;
        }
        let row = &mut rows.0[num_seen];
        match action(batch, row, py) {
            Action::Idle => {
                num_seen += 1;
                continue;
            }
            Action::Unusual => break,
            Action::Decode => {}
        }
        let progress = RequestProgress {
            num_computed: u32::try_from(row.counts.computed)?,
            num_in_flight: u32::try_from(row.counts.in_flight)?,
            ..RequestProgress::default()
        };
        let request = row.view(py);
        let blocks = match RustKVCacheManager::extend(manager, &request, row.handle, progress, 1)? {
            Room::Unchanged => None,
            Room::New(ids) => new_block_ids(py, &ids)?,
            Room::None => break,
        };
        if row.handle.is_none() {
            row.handle = RustKVCacheManager::handle_of(manager, &request)?;
        }
        num_seen += 1;
        step.add(row, blocks, py)?;
    }
    rows.0.truncate(num_seen);
    step.finish(num_seen, py)
}

/// Let the row at `index` say what the request is now; `false` where it does anything but decode.
fn bring_up(rows: &mut Rows, index: usize, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_known = rows.has_at(index, object);
    let counts;
    let new;
    if is_known {
        let row = &rows.0[index];
        let request = row.view(object.py());
        counts = Counts::read(&request)?;
        if counts == row.counts {
            return Ok(true);
        }
        new = Row::read(&request, counts)?;
    } else {
        let request = RequestView::new(object)?;
        new = Row::read(&request, Counts::read(&request)?)?;
    }
    let Some(new) = new else { return Ok(false) };
    if is_known {
        rows.0[index] = new;
    } else {
        rows.0.insert(index, new);
    }
    Ok(true)
}

fn action(batch: &DecodeBatch, row: &Row, py: Python<'_>) -> Action {
    let Counts { computed, placeholders, .. } = row.counts;
    // The outputs in flight reach the limit whatever they turn out to be.
    if placeholders > 0 && computed + 2 - placeholders >= row.num_prompt + row.max_tokens {
        return Action::Idle;
    }
    let num_new = count(row.tokens.bind(py)) + placeholders - computed;
    // The sampled token needs a position too.
    match num_new.min(batch.max_model_len - computed - 1) {
        0 => Action::Idle,
        1 => Action::Decode,
        _ => Action::Unusual,
    }
}

impl<'py> Step<'_, 'py> {
    /// Add a request that has room, and count its token.
    fn add(
        &mut self,
        row: &mut Row,
        blocks: Option<Bound<'py, PyTuple>>,
        py: Python<'py>,
    ) -> PyResult<()> {
        let (id, counts) = (row.id.bind(py), row.counts);
        self.new_blocks.push(blocks);
        self.scheduled.set_item(id, &self.one)?;
        self.computed.push(counts.computed);
        self.outputs.push(count(row.output_tokens.bind(py)) + counts.placeholders);
        if let Some(previous) = self.previous
            && !previous.contains(id)?
        {
            self.all_token_ids.set_item(id, row.tokens.bind(py).get_slice(0, usize::MAX))?;
        }
        self.ids.push(id.clone());
        if row.has_grammar {
            self.has_structured_output = true;
            self.pending_structured_output |= self.batch.is_async && counts.placeholders > 0;
        }
        row.counts.computed += 1;
        row.counts.in_flight += 1;
        row.counts.placeholders += i64::from(self.batch.is_async);
        let request = row.view(py);
        request.set_num_computed(row.counts.computed)?;
        request.set_num_in_flight(row.counts.in_flight)?;
        if self.batch.is_async {
            request.set_num_placeholders(row.counts.placeholders)?;
        }
        Ok(())
    }

    fn finish(self, num_seen: usize, py: Python<'py>) -> PyResult<ScheduledDecodes> {
        Ok(ScheduledDecodes {
            num_seen,
            num_scheduled_tokens: self.scheduled.unbind(),
            req_ids: PyList::new(py, self.ids)?.unbind(),
            new_block_ids: PyList::new(py, self.new_blocks)?.unbind(),
            num_computed_tokens: PyList::new(py, self.computed)?.unbind(),
            num_output_tokens: PyList::new(py, self.outputs)?.unbind(),
            all_token_ids: self.all_token_ids.unbind(),
            has_structured_output: self.has_structured_output,
            pending_structured_output: self.pending_structured_output,
        })
    }
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
