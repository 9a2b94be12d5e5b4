//! The end of a step's scheduling: its tokens count as computed from now on.

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::batch::DecodeBatch;
use super::row::{Rows, Scheduled};

/// Counts the scheduled tokens of each row. `drafts` stand for those of the next step, and `fence`
/// numbers the steps whose end frees wait for; `step_number` numbers all.
pub(super) fn advance(
    batch: &DecodeBatch,
    rows: &mut Rows,
    drafts: &Bound<'_, PyList>,
    step_number: i64,
    fence: Option<i64>,
) -> PyResult<()> {
    let (py, rules) = (drafts.py(), &batch.rules);
    for row in &mut rows.0 {
        let Scheduled { num_new, num_drafts } = std::mem::take(&mut row.scheduled);
        if num_new == 0 {
            continue;
        }
        row.last_step = step_number;
        row.counts.computed += num_new;
        row.counts.in_flight += num_new;
        if rules.is_async {
            row.counts.placeholders += 1 + num_drafts;
        }
        row.show(row.counts);
        let request = row.view(py);
        if rules.is_async {
            if rules.num_spec_tokens > 0 {
                request.set_drafts(drafts)?;
            }
            if rules.decode_stagger > 0 {
                request.set_next_eligible(step_number + rules.decode_stagger)?;
            }
        }
        if let Some(fence) = fence {
            request.set_last_step(fence)?;
        }
    }
    Ok(())
}
