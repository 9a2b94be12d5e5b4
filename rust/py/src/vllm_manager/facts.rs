//! What is read of vLLM's `Request`.

use hybrid_blocks::vllm::Facts;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The request's id, borrowed from the request.
pub(crate) fn request_id<'py>(request: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    Ok(request.getattr(intern!(request.py(), "request_id"))?.cast_into()?)
}

/// What a decode step is judged by.
pub(super) fn progress(request: &Bound<'_, PyAny>) -> PyResult<Facts> {
    let py = request.py();
    Ok(Facts {
        num_computed: request.getattr(intern!(py, "num_computed_tokens"))?.extract()?,
        num_in_flight: request.getattr(intern!(py, "num_in_flight_tokens"))?.extract()?,
        ..Facts::default()
    })
}

/// Everything. `waiting` are the states of requests that are to be admitted.
pub(super) fn facts(request: &Bound<'_, PyAny>, waiting: &[Py<PyAny>]) -> PyResult<Facts> {
    let py = request.py();
    let boundary = request.getattr_opt(intern!(py, "shared_prefix_boundary"))?;
    Ok(Facts {
        num_tokens: request.getattr(intern!(py, "num_tokens"))?.extract()?,
        num_prompt: request.getattr(intern!(py, "num_prompt_tokens"))?.extract()?,
        shared_prefix_boundary: boundary.map_or(Ok(0), |boundary| boundary.extract())?,
        is_waiting: is_waiting(request, waiting)?,
        ..progress(request)?
    })
}

pub(super) fn is_waiting(request: &Bound<'_, PyAny>, waiting: &[Py<PyAny>]) -> PyResult<bool> {
    let status = request.getattr(intern!(request.py(), "status"))?;
    Ok(waiting.iter().any(|state| status.is(state)))
}
