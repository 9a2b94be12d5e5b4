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

/// Beside its progress, what any other step is judged by; the boundary only where it is heeded, and
/// not whether the request waits.
pub(super) fn complete(
    progress: Facts,
    request: &Bound<'_, PyAny>,
    heeds_boundary: bool,
) -> PyResult<Facts> {
    let py = request.py();
    let boundary = if heeds_boundary {
        request.getattr_opt(intern!(py, "shared_prefix_boundary"))?
    } else {
        None
    };
    Ok(Facts {
        num_tokens: request.getattr(intern!(py, "num_tokens"))?.extract()?,
        num_prompt: request.getattr(intern!(py, "num_prompt_tokens"))?.extract()?,
        shared_prefix_boundary: boundary.map_or(Ok(0), |boundary| boundary.extract())?,
        ..progress
    })
}

/// Whether the request is in one of the states of those to be admitted.
pub(super) fn is_waiting(request: &Bound<'_, PyAny>, waiting: &[Py<PyAny>]) -> PyResult<bool> {
    let status = request.getattr(intern!(request.py(), "status"))?;
    Ok(waiting.iter().any(|state| status.is(state)))
}
