//! One step of the running requests: room for a token each, and for what was drafted after it.

use hybrid_blocks::BlockId;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyString, PyTuple};

use crate::manager::{Room, RustKVCacheManager, id_lists};
use crate::request::{Counts, RequestView, count, progress};

use super::batch::{DecodeBatch, Rules};
use super::row::{Row, Rows, Scheduled};

/// The step's output for them, by request in the order of the running.
#[pyclass(frozen, get_all, module = "hybrid_blocks._core.vllm")]
pub(crate) struct ScheduledDecodes {
    /// Running requests that are dealt with. Some have nothing to do in this step.
    num_seen: usize,
    num_tokens: i64,
    num_scheduled_tokens: Py<PyDict>,
    /// Drafted tokens of requests with drafts.
    spec_tokens: Py<PyDict>,
    req_ids: Py<PyList>,
    new_block_ids: Py<PyList>,
    num_computed_tokens: Py<PyList>,
    num_output_tokens: Py<PyList>,
    /// The tokens that others sampled, where workers are sent them.
    new_token_ids: Py<PyList>,
    /// All tokens of requests that the step before had not scheduled.
    all_token_ids: Py<PyDict>,
    has_structured_output: bool,
    pending_structured_output: bool,
    /// Whether no step verifies the drafts made after this one.
    drafts_unused: bool,
}

/// The limits of a step, and its number.
pub(super) struct Limits {
    pub(super) token_budget: i64,
    /// Tokens and drafters' own slots.
    pub(super) input_budget: i64,
    pub(super) step_number: i64,
    /// Whether the last request that decodes is left to vLLM's code.
    pub(super) leaves_last: bool,
}

/// The action of a running request in this step.
enum Action {
    /// The request waits for outputs or for its turn.
    Idle,
    /// There is no position for another token.
    Full,
    /// This number of tokens, drafts included.
    Decode(i64),
    /// Anything else: the rest is vLLM's.
    Unusual,
}

/// The step's output, as it grows.
struct Step<'a, 'py> {
    rules: &'a Rules,
    number: i64,
    /// Requests that the step before had scheduled.
    previous: Option<&'a Bound<'py, PySet>>,
    scheduled: Bound<'py, PyDict>,
    spec_tokens: Bound<'py, PyDict>,
    all_token_ids: Bound<'py, PyDict>,
    num_tokens: i64,
    /// The used part of the input budget.
    num_inputs: i64,
    ids: Vec<Bound<'py, PyString>>,
    new_blocks: Vec<Option<Bound<'py, PyTuple>>>,
    computed: Vec<i64>,
    outputs: Vec<i64>,
    new_tokens: Vec<Bound<'py, PyList>>,
    has_structured_output: bool,
    pending_structured_output: bool,
    drafts_unused: bool,
}

/// Schedules running requests up to the first that does more than decode, or that finds no room.
/// Where vLLM's code asks whether any was scheduled, up to the last that decodes.
///
/// Their counts stay as they are until [`advance`](super::advance::advance).
pub(super) fn schedule<'py>(
    batch: &DecodeBatch,
    rows: &mut Rows,
    running: &Bound<'py, PyList>,
    limits: &Limits,
    previous: Option<&Bound<'py, PySet>>,
) -> PyResult<ScheduledDecodes> {
    let (py, rules) = (running.py(), &batch.rules);
    let manager = batch.manager.bind(py);
    let most =
        if limits.leaves_last { last_decode(batch, rows, running, limits)? } else { running.len() };
    let mut step = Step::new(rules, limits.step_number, previous, most, py);
    let mut num_seen = 0;
    for object in running.iter().take(most) {
        let left = step.left(limits);
        if left <= 0 || !bring_up(batch, rows, num_seen, &object)? {
            break;
        }
        let row = &mut rows.0[num_seen];
        row.scheduled = Scheduled::default();
        let request = row.view(py);
        let drafts = drafts(rules, &request)?;
        let num_drafts = drafts.as_ref().map_or(0, count);
        let num_new = match action(rules, row, &request, num_drafts, limits.step_number)? {
            Action::Idle => None,
            Action::Full => batch.has_encoder_outputs(row, &request)?.then_some(0),
            Action::Decode(num_new) if num_new <= left => {
                batch.has_encoder_outputs(row, &request)?.then_some(num_new)
            }
            Action::Decode(_) | Action::Unusual => break,
        };
        let Some(num_new) = num_new.filter(|&num_new| num_new > 0) else {
            num_seen += 1;
            continue;
        };
        let num_prompt = u32::try_from(row.num_prompt)?;
        let progress = progress(row.counts.computed, row.counts.in_flight, num_prompt)?;
        let room = RustKVCacheManager::extend(
            manager,
            &request,
            row.handle,
            progress,
            u32::try_from(num_new)?,
            rules.num_lookahead_tokens,
        )?;
        let blocks = match room {
            Room::Unchanged => None,
            Room::New(ids) => new_block_ids(py, &ids)?,
            Room::None => break,
        };
        let handle = match row.handle {
            None => RustKVCacheManager::handle_of(manager, &request)?,
            known => known,
        };
        row.handle = handle;
        num_seen += 1;
        step.add(row, num_new, drafts, blocks, py)?;
    }
    rows.0.truncate(num_seen);
    step.finish(num_seen, py)
}

/// The place of the last running request that is sure to decode. If there is none, that of the first
/// that may, or of the last at all.
fn last_decode(
    batch: &DecodeBatch,
    rows: &Rows,
    running: &Bound<'_, PyList>,
    limits: &Limits,
) -> PyResult<usize> {
    let rules = &batch.rules;
    let mut last = running.len().saturating_sub(1);
    // Rows are in the order of the running requests, who may be fewer or more by now.
    let mut known = rows.0.as_slice();
    for index in (0..running.len()).rev() {
        let object = running.get_item(index)?;
        let kept = known.split_last().filter(|(row, _)| row.request.is(&object));
        if let Some((_, before)) = kept {
            known = before;
        }
        let request = RequestView::new(&object)?;
        let read;
        let row = match kept {
            Some((row, _)) if row.is_current() => row,
            _ if request.is_prefill_chunk()? => continue,
            _ => match Row::read(batch, &request)? {
                Some(row) => {
                    read = row;
                    &read
                }
                None => continue,
            },
        };
        let num_drafts = drafts(rules, &request)?.as_ref().map_or(0, count);
        if let Action::Decode(_) = action(rules, row, &request, num_drafts, limits.step_number)? {
            if !batch.may_miss_encoder_outputs(row) {
                return Ok(index);
            }
            last = index;
        }
    }
    Ok(last)
}

/// Refreshes the row at `index` from its request; `false` if it does more than decode.
fn bring_up(
    batch: &DecodeBatch,
    rows: &mut Rows,
    index: usize,
    object: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let is_known = rows.has_at(index, object);
    if is_known && rows.0[index].is_current() {
        return Ok(true);
    }
    let Some(new) = Row::read(batch, &RequestView::new(object)?)? else { return Ok(false) };
    if is_known {
        rows.0[index] = new;
    } else {
        rows.0.insert(index, new);
    }
    Ok(true)
}

/// The drafts of a request, or their placeholders.
fn drafts<'py>(
    rules: &Rules,
    request: &RequestView<'_, 'py>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    if rules.num_spec_tokens == 0 {
        return Ok(None);
    }
    let drafts = request.drafts()?;
    Ok((!drafts.is_empty()).then_some(drafts))
}

fn action(
    rules: &Rules,
    row: &Row,
    request: &RequestView<'_, '_>,
    num_drafts: i64,
    step_number: i64,
) -> PyResult<Action> {
    let Counts { computed, placeholders, .. } = row.counts;
    // The outputs in flight reach the limit whatever they turn out to be.
    if placeholders > 0 && computed + 2 - placeholders >= row.num_prompt + row.max_tokens {
        return Ok(Action::Idle);
    }
    if rules.decode_stagger > 0 && step_number < request.next_eligible()? {
        return Ok(Action::Idle);
    }
    let num_known = count(row.tokens.bind(request.object.py())) + placeholders - computed;
    // The sampled token needs a position too.
    let num_new = (num_known + num_drafts).min(rules.max_model_len - computed - 1);
    let threshold = rules.long_prefill_token_threshold;
    Ok(if num_new <= 0 {
        Action::Full
    } else if num_known == 1 && (threshold == 0 || num_new <= threshold) {
        Action::Decode(num_new)
    } else {
        Action::Unusual
    })
}

impl<'a, 'py> Step<'a, 'py> {
    fn new(
        rules: &'a Rules,
        number: i64,
        previous: Option<&'a Bound<'py, PySet>>,
        most: usize,
        py: Python<'py>,
    ) -> Self {
        Self {
            rules,
            number,
            previous,
            scheduled: PyDict::new(py),
            spec_tokens: PyDict::new(py),
            all_token_ids: PyDict::new(py),
            num_tokens: 0,
            num_inputs: 0,
            ids: Vec::with_capacity(most),
            new_blocks: Vec::with_capacity(most),
            computed: Vec::with_capacity(most),
            outputs: Vec::with_capacity(most),
            new_tokens: Vec::new(),
            has_structured_output: false,
            pending_structured_output: false,
            drafts_unused: true,
        }
    }

    /// The tokens that the next request may have.
    fn left(&self, limits: &Limits) -> i64 {
        let inputs = limits.input_budget - self.num_inputs - self.rules.draft_slots;
        inputs.min(limits.token_budget - self.num_tokens)
    }

    /// Adds a request that has room.
    fn add(
        &mut self,
        row: &mut Row,
        num_new: i64,
        drafts: Option<Bound<'py, PyList>>,
        blocks: Option<Bound<'py, PyTuple>>,
        py: Python<'py>,
    ) -> PyResult<()> {
        let (id, counts) = (row.id.bind(py), row.counts);
        let num_outputs = count(row.output_tokens.bind(py));
        self.new_blocks.push(blocks);
        self.scheduled.set_item(id, num_new)?;
        self.num_tokens += num_new;
        self.num_inputs += num_new + self.rules.draft_slots;
        self.computed.push(counts.computed);
        self.outputs.push(num_outputs + counts.placeholders);
        row.scheduled = Scheduled { num_new, num_drafts: num_new - 1 };
        if let Some(drafts) = drafts {
            if num_new > 1 {
                let most = (num_new - 1).unsigned_abs() as usize;
                let drafts = if drafts.len() > most { drafts.get_slice(0, most) } else { drafts };
                self.spec_tokens.set_item(id, drafts)?;
            }
            row.view(py).set_drafts(&PyList::empty(py))?;
        }
        if self.rules.sends_tokens {
            let start = usize::try_from(counts.computed)?;
            self.new_tokens.push(row.tokens.bind(py).get_slice(start, start + 1));
        }
        if let Some(previous) = self.previous
            && row.last_step + 1 != self.number
            && !previous.contains(id)?
        {
            self.all_token_ids.set_item(id, row.tokens.bind(py).get_slice(0, usize::MAX))?;
        }
        self.ids.push(id.clone());
        if row.has_grammar {
            self.has_structured_output = true;
            self.pending_structured_output |= self.rules.is_async && counts.placeholders > 0;
        }
        // A step whose outputs are in flight, and this one, bring a token each at least.
        let num_sure = num_outputs + 1 + i64::from(counts.placeholders > 0);
        self.drafts_unused &= num_sure >= row.max_tokens;
        Ok(())
    }

    fn finish(self, num_seen: usize, py: Python<'py>) -> PyResult<ScheduledDecodes> {
        Ok(ScheduledDecodes {
            num_seen,
            num_tokens: self.num_tokens,
            num_scheduled_tokens: self.scheduled.unbind(),
            spec_tokens: self.spec_tokens.unbind(),
            req_ids: PyList::new(py, self.ids)?.unbind(),
            new_block_ids: PyList::new(py, self.new_blocks)?.unbind(),
            num_computed_tokens: PyList::new(py, self.computed)?.unbind(),
            num_output_tokens: PyList::new(py, self.outputs)?.unbind(),
            new_token_ids: PyList::new(py, self.new_tokens)?.unbind(),
            all_token_ids: self.all_token_ids.unbind(),
            has_structured_output: self.has_structured_output,
            pending_structured_output: self.pending_structured_output,
            drafts_unused: self.drafts_unused,
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
    id_lists(py, ids.iter().map(Vec::as_slice)).map(Some)
}
