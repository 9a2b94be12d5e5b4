//! Attributes of vLLM's `Request` whose values, or changes, are kept in [`RequestState`].
//!
//! A decode step reads and writes three counts of each request. As Python integers in a dictionary
//! they cost most of it; as descriptors on the class they are numbers here, and Python code that
//! reads or writes them sees no difference.

use pyo3::exceptions::PyAttributeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::state::Counts;
use super::view::RequestView;

const STATUS: &str = "status";

/// Which of the counts.
type Field = fn(&mut Counts) -> &mut i64;

/// A count of requests, as an attribute of their class.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct RequestCount {
    name: Py<PyString>,
    of: Field,
}

#[pymethods]
impl RequestCount {
    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        request: Option<&Bound<'py, PyAny>>,
        _class: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(object) = request else { return Ok(slf.clone().into_any()) };
        let (py, this) = (slf.py(), slf.get());
        let request = RequestView::new(object)?;
        match request.kept_counts()? {
            Some(mut counts) => Ok((this.of)(&mut counts).into_pyobject(py)?.into_any()),
            None => value(&request, this.name.bind(py)),
        }
    }

    fn __set__(&self, object: &Bound<'_, PyAny>, value: i64) -> PyResult<()> {
        let state = RequestView::new(object)?.counting()?;
        let mut counts = state.get().counts();
        if let Some(counts) = &mut counts {
            *(self.of)(counts) = value;
            state.get().set_counts(*counts);
        }
        Ok(())
    }
}

/// The status of requests, as an attribute of their class: where it is set is counted.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct RequestStatus;

#[pymethods]
impl RequestStatus {
    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        request: Option<&Bound<'py, PyAny>>,
        _class: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(object) = request else { return Ok(slf.clone().into_any()) };
        value(&RequestView::new(object)?, intern!(slf.py(), STATUS))
    }

    #[expect(clippy::unused_self, reason = "a descriptor has no static methods")]
    fn __set__(&self, object: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let request = RequestView::new(object)?;
        request.attributes.set_item(intern!(object.py(), STATUS), value)?;
        if let Some(state) = request.state()? {
            state.get().note_status_change();
        }
        Ok(())
    }
}

/// An attribute as the request's dictionary has it.
fn value<'py>(
    request: &RequestView<'_, 'py>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    match request.attributes.get_item(name)? {
        Some(value) => Ok(value),
        None => Err(PyAttributeError::new_err(format!("the request has no attribute {name}"))),
    }
}

/// Let the counts and the status of a class of requests be kept here, once for all of its instances.
pub(crate) fn show(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    if class
        .getattr_opt(intern!(py, STATUS))?
        .is_some_and(|old| old.is_instance_of::<RequestStatus>())
    {
        return Ok(());
    }
    let counts: [(_, Field); 3] = [
        (intern!(py, "num_computed_tokens"), |counts| &mut counts.computed),
        (intern!(py, "num_in_flight_tokens"), |counts| &mut counts.in_flight),
        (intern!(py, "num_output_placeholders"), |counts| &mut counts.placeholders),
    ];
    for (name, of) in counts {
        class.setattr(name, RequestCount { name: name.clone().unbind(), of })?;
    }
    class.setattr(intern!(py, STATUS), RequestStatus)
}
