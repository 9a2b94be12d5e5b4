//! When a request has generated enough.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::request::RequestView;

pub(super) enum Stop {
    /// A token that ends the text.
    EndOfText,
    /// A token that the caller asked to stop at.
    Token,
    /// The request's limit, or the model's.
    Length,
}

/// Whether the stop conditions are more than tokens and lengths.
pub(super) fn is_unusual(sampling: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!sampling.getattr(intern!(sampling.py(), "repetition_detection"))?.is_none())
}

/// Why the request ends with `token`, its latest, if it does.
pub(super) fn reason(
    request: &RequestView<'_, '_>,
    sampling: &Bound<'_, PyAny>,
    token: &Bound<'_, PyAny>,
    num_tokens: i64,
    num_output_tokens: i64,
    max_model_len: i64,
) -> PyResult<Option<Stop>> {
    let py = sampling.py();
    if token.eq(sampling.getattr(intern!(py, "eos_token_id"))?)? {
        return Ok(Some(Stop::EndOfText));
    }
    let stop_tokens = sampling.getattr(intern!(py, "stop_token_ids"))?;
    if let Ok(stop_tokens) = stop_tokens.cast::<PyList>()
        && !stop_tokens.is_empty()
        && stop_tokens.contains(token)?
    {
        return Ok(Some(Stop::Token));
    }
    let is_full = num_tokens >= max_model_len || num_output_tokens >= request.max_tokens()?;
    Ok(is_full.then_some(Stop::Length))
}
