//! [`Extras`]: what a model's output says of requests beside their tokens.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::request::RequestView;

/// vLLM's objects, each where there is one; dictionaries are by request.
#[derive(FromPyObject)]
pub(super) struct Extras<'py> {
    /// Drafts that the step verified.
    pub(super) spec_tokens: Bound<'py, PyDict>,
    /// How many of them a grammar had ruled out.
    pub(super) num_invalid: Option<Bound<'py, PyDict>>,
    pub(super) logprobs: Option<Bound<'py, PyAny>>,
    pub(super) sampling_masks: Option<Bound<'py, PyAny>>,
    pub(super) prompt_logprobs: Option<Bound<'py, PyDict>>,
    pub(super) prompt_token_logprobs: Option<Bound<'py, PyDict>>,
    pub(super) num_nans: Option<Bound<'py, PyDict>>,
}

impl<'py> Extras<'py> {
    /// Whether there is something to say of a request's prompt.
    pub(super) fn is_about_prompt(&self, id: &Bound<'py, PyAny>) -> PyResult<bool> {
        for of in [&self.prompt_logprobs, &self.prompt_token_logprobs].into_iter().flatten() {
            if of.get_item(id)?.is_some_and(|found| !found.is_none()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds these extras to a request's output; `index` is its place in the batch.
    pub(super) fn add(
        &self,
        output: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        index: usize,
        num_tokens: usize,
        wants_logprobs: bool,
    ) -> PyResult<()> {
        let py = output.py();
        let of_batch = [
            (self.logprobs.as_ref().filter(|_| wants_logprobs), intern!(py, "new_logprobs")),
            (self.sampling_masks.as_ref(), intern!(py, "new_sampling_mask")),
        ];
        for (found, field) in of_batch {
            if let Some(found) = found {
                let slice =
                    found.call_method1(intern!(py, "slice_request"), (index, num_tokens))?;
                output.setattr(field, slice)?;
            }
        }
        let of_requests = [
            (&self.prompt_logprobs, intern!(py, "new_prompt_logprobs_tensors")),
            (&self.prompt_token_logprobs, intern!(py, "prompt_token_id_logprobs")),
        ];
        for (found, field) in of_requests {
            if let Some(found) = found
                && let Some(of_request) = found.get_item(id)?
            {
                output.setattr(field, of_request)?;
            }
        }
        Ok(())
    }

    /// Notes on a request how many of its logits were no numbers; returns whether the model says.
    pub(super) fn note_nans(
        &self,
        request: &RequestView<'_, 'py>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let Some(num_nans) = &self.num_nans else { return Ok(false) };
        let Some(of_request) = num_nans.get_item(id)? else { return Ok(false) };
        request.object.setattr(intern!(request.object.py(), "num_nans_in_logits"), of_request)?;
        Ok(true)
    }
}
