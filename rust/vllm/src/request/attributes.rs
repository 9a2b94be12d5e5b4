//! Attributes of vLLM's `Request` whose values, or changes, are kept in [`RequestState`].
//!
//! A decode step reads and writes three counts of each request. As Python integers in a dictionary
//! they cost most of it; as descriptors on the class they are numbers here, and Python code that
//! reads or writes them sees no difference.
//!
//! [`RequestState`]: super::RequestState

use pyo3::exceptions::PyAttributeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple, PyType};

use super::state::{CountOf, Counts};
use super::view::RequestView;

#[derive(Clone, Copy)]
enum Kept {
    /// The value of this count.
    Count(CountOf),
    /// How often it was set. Its value stays in the request's dictionary.
    Changes,
}

/// An attribute of requests, on their class.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct RequestAttribute {
    name: Py<PyString>,
    kept: Kept,
}

#[pymethods]
impl RequestAttribute {
    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        request: Option<&Bound<'py, PyAny>>,
        _class: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(object) = request else { return Ok(slf.clone().into_any()) };
        let (py, this) = (slf.py(), slf.get());
        let request = RequestView::new(object)?;
        if let Some(value) = request.attributes().get_item(&this.name)? {
            return Ok(value);
        }
        match (this.kept, request.kept_counts()?) {
            (Kept::Count(of), Some(mut counts)) => {
                Ok(of(&mut counts).into_pyobject(py)?.into_any())
            }
            _ => Err(this.is_missing(py)),
        }
    }

    fn __set__(&self, object: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let request = RequestView::new(object)?;
        match self.kept {
            Kept::Count(of) => {
                let value = value.extract()?;
                let (state, mut counts) = request.counting()?;
                *of(&mut counts) = value;
                state.get().set_counts(counts);
            }
            Kept::Changes => {
                request.attributes().set_item(&self.name, value)?;
                if let Some(state) = request.state()? {
                    state.get().note_status_change();
                }
            }
        }
        Ok(())
    }

    /// Some tests put a value into an attribute for a while and delete it then.
    fn __delete__(&self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, request) = (object.py(), RequestView::new(object)?);
        request.give_counts_back()?;
        request.attributes().del_item(&self.name).map_err(|_| self.is_missing(py))
    }
}

impl RequestAttribute {
    fn is_missing(&self, py: Python<'_>) -> PyErr {
        let name = self.name.bind(py);
        PyAttributeError::new_err(format!("the request has no attribute {name}"))
    }
}

/// `__getstate__` of requests: what a copy or a pickle is made of. It has the counts as they are then
/// and nothing of ours, so that it can be read where this package is not.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct RequestGetState(Py<PyAny>);

#[pymethods]
impl RequestGetState {
    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        request: Option<&Bound<'py, PyAny>>,
        _class: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(request) = request else { return Ok(slf.clone().into_any()) };
        let (request, before) = (request.clone().unbind(), slf.get().0.clone_ref(slf.py()));
        let state = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            let py = arguments.py();
            let state = before.call1(py, (&request,))?;
            if let Ok(state) = state.bind(py).cast::<PyDict>() {
                let state = state.copy()?;
                RequestView::new(request.bind(py))?.put_counts_into(&state)?;
                return Ok(state.into_any().unbind());
            }
            Ok::<_, PyErr>(state)
        };
        Ok(PyCFunction::new_closure(slf.py(), None, None, state)?.into_any())
    }
}

/// Lets the counts and the status of a class of requests be kept here, once for all its instances.
pub(crate) fn show(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    let counts = Counts::by_name(py).map(|(name, of)| (name, Kept::Count(of)));
    let attributes = counts.into_iter().chain([(intern!(py, "status"), Kept::Changes)]);
    let copied = intern!(py, "__getstate__");
    let before = class.getattr(copied)?;
    if !before.is_instance_of::<RequestGetState>() {
        class.setattr(copied, RequestGetState(before.unbind()))?;
    }
    for (name, kept) in attributes {
        let before = class.getattr_opt(name)?;
        if !before.is_some_and(|before| before.is_instance_of::<RequestAttribute>()) {
            class.setattr(name, RequestAttribute { name: name.clone().unbind(), kept })?;
        }
    }
    Ok(())
}
