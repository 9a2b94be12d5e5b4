//! The outcome of drafts.

use pyo3::exceptions::PyAssertionError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyList};

use crate::request::Counts;

use super::batch::Rules;
use super::extras::Extras;
use super::row::Row;

/// The counts of vLLM's `SpecDecodingStats`, of one step.
#[pyclass(frozen, get_all, module = "hybrid_blocks._core.vllm")]
#[derive(Clone, Debug)]
#[expect(clippy::struct_field_names, reason = "vLLM's names")]
pub(crate) struct SpecCounts {
    num_drafts: u64,
    num_draft_tokens: u64,
    num_accepted_tokens: u64,
    num_accepted_tokens_per_pos: Vec<u64>,
    num_draft_tokens_per_pos: Vec<u64>,
}

impl SpecCounts {
    pub(super) fn new(num_spec_tokens: usize) -> Self {
        Self {
            num_drafts: 0,
            num_draft_tokens: 0,
            num_accepted_tokens: 0,
            num_accepted_tokens_per_pos: vec![0; num_spec_tokens],
            num_draft_tokens_per_pos: vec![0; num_spec_tokens],
        }
    }

    fn observe(&mut self, num_drafted: usize, num_accepted: usize) {
        self.num_drafts += 1;
        self.num_draft_tokens += num_drafted as u64;
        self.num_accepted_tokens += num_accepted as u64;
        self.num_accepted_tokens_per_pos.iter_mut().take(num_accepted).for_each(|n| *n += 1);
        self.num_draft_tokens_per_pos.iter_mut().take(num_drafted).for_each(|n| *n += 1);
    }
}

/// Takes back the rejected tokens, and counts.
pub(super) fn settle(
    rules: &Rules,
    row: &Row,
    id: &Bound<'_, PyAny>,
    extras: &Extras<'_>,
    num_sampled: usize,
    counts: &mut Counts,
    spec: &mut SpecCounts,
) -> PyResult<()> {
    let Some(drafts) = extras.spec_tokens.get_item(id)? else { return Ok(()) };
    let num_drafts = drafts.cast::<PyList>()?.len();
    if num_drafts == 0 {
        return Ok(());
    }
    let num_accepted = num_sampled - 1;
    if num_accepted > rules.num_spec_tokens {
        let message = format!("{num_accepted} drafts accepted, of {}", rules.num_spec_tokens);
        return Err(PyAssertionError::new_err(message));
    }
    let num_rejected = num_drafts.cast_signed() as i64 - num_accepted.cast_signed() as i64;
    if counts.computed > 0 {
        counts.computed -= num_rejected;
    }
    if counts.placeholders > 0 {
        counts.placeholders -= num_rejected;
    }
    let num_invalid = match &extras.num_invalid {
        Some(num_invalid) => num_invalid.get_item(id)?.map_or(Ok(0), |found| found.extract())?,
        None => 0,
    };
    let num_valid = num_drafts.saturating_sub(num_invalid);
    spec.observe(num_valid, num_accepted);
    if let Some(metrics) = &row.spec_metrics {
        let said = (num_valid, num_accepted, rules.detailed_spec_metrics);
        metrics.bind(id.py()).call_method1(intern!(id.py(), "observe"), said)?;
    }
    Ok(())
}
