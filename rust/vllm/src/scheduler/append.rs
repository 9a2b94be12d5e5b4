//! The tokens of an output: appended, hashed, and committed where they fill blocks.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::hasher::RequestHasher;
use crate::manager::RustKVCacheManager;
use crate::request::{Counts, RequestView, at_least_none, count};

use super::batch::DecodeBatch;
use super::row::{Hasher, Row};
use super::stop::StopRule;

/// Appends tokens up to the first that ends the request, and takes those after it off `list`.
/// Returns whether one does; `tokens` are the numbers in the list.
pub(super) fn append<'py>(
    batch: &DecodeBatch,
    row: &Row,
    request: &RequestView<'_, 'py>,
    counts: &mut Counts,
    tokens: &[i64],
    list: &Bound<'py, PyList>,
) -> PyResult<bool> {
    let py = list.py();
    let num_new = list.len();
    let (all, outputs) = (row.tokens.bind(py), row.output_tokens.bind(py));
    let mut is_stopped = false;
    for (index, &token) in tokens.iter().enumerate() {
        let id = list.get_item(index)?;
        outputs.append(&id)?;
        all.append(&id)?;
        hash(row, request, all)?;
        is_stopped = ends(batch, row, request, token, &id)?;
        if is_stopped {
            list.del_slice(index + 1, num_new)?;
            break;
        }
    }
    take_in(batch, row, request, counts, num_new, list.len())?;
    Ok(is_stopped)
}

/// Whether a request ends with its latest token, which its state then says.
fn ends<'py>(
    batch: &DecodeBatch,
    row: &Row,
    request: &RequestView<'_, 'py>,
    token: i64,
    id: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    let py = id.py();
    let (end_of_text, others) = match &row.stop {
        Some(StopRule::Tokens { end_of_text, others }) => (*end_of_text, others),
        Some(StopRule::Asked) | None => {
            let check_stop = batch.check_stop.bind(py);
            return check_stop.call1((request.object, batch.rules.max_model_len))?.is_truthy();
        }
    };
    let is_full = count(row.tokens.bind(py)) >= batch.rules.max_model_len
        || count(row.output_tokens.bind(py)) >= row.max_tokens;
    let (ends_text, is_stop) = (end_of_text == Some(token), others.contains(&token));
    let status = if ends_text || is_stop {
        &batch.states.stopped
    } else if is_full {
        &batch.states.length_capped
    } else {
        return Ok(false);
    };
    request.object.setattr(intern!(py, "status"), status)?;
    if is_stop && !ends_text {
        request.object.setattr(intern!(py, "stop_reason"), id)?;
    }
    Ok(true)
}

/// Settles the tokens in flight: of `num_new` tokens `num_kept` were appended. Then commits.
fn take_in(
    batch: &DecodeBatch,
    row: &Row,
    request: &RequestView<'_, '_>,
    counts: &mut Counts,
    num_new: usize,
    num_kept: usize,
) -> PyResult<()> {
    let rules = &batch.rules;
    let (num_new, num_kept) = (num_new.cast_signed() as i64, num_kept.cast_signed() as i64);
    let had_placeholders = counts.placeholders > 0;
    if rules.takes_back_trimmed && num_kept < num_new {
        counts.computed -= num_new - num_kept;
    }
    if had_placeholders {
        counts.placeholders -= if rules.takes_back_trimmed { num_new } else { num_kept };
    }
    row.show(*counts);
    if had_placeholders || rules.commits_outputs {
        let unsettled =
            if rules.takes_back_trimmed { counts.in_flight } else { counts.placeholders };
        let num_done = at_least_none(counts.computed - unsettled)?;
        let manager = batch.manager.bind(request.object.py());
        RustKVCacheManager::commit(manager, request, row.handle, num_done)?;
    }
    Ok(())
}

/// Hashes the block that the latest token completes.
fn hash<'py>(
    row: &Row,
    request: &RequestView<'_, 'py>,
    tokens: &Bound<'py, PyList>,
) -> PyResult<()> {
    let py = tokens.py();
    match &row.hasher {
        Hasher::None => Ok(()),
        Hasher::Ours(hasher) if !hasher.get().ends_block(tokens.len()) => Ok(()),
        Hasher::Ours(hasher) => {
            let known = request.block_hashes()?.cast_into::<PyList>()?;
            match RequestHasher::new_hashes(hasher.bind(py), request, tokens, &known)? {
                Some(new) => new.iter().try_for_each(|hash| known.append(hash)),
                None => Ok(()),
            }
        }
        Hasher::Other => request.object.call_method0(intern!(py, "update_block_hashes")).map(drop),
    }
}
