//! `CheckpointPolicy`: where recurrent states are kept for later requests.

use hybrid_blocks as core;
use pyo3::prelude::*;
use pyo3::types::{PySequence, PyTuple};

use hybrid_blocks_interop::invalid_argument;

use crate::batch::{optional_size, size};

/// Reads distances before the end of a prompt: one, several, or `None`.
fn margins(obj: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u32>>> {
    if obj.is_none() {
        return Ok(None);
    }
    if obj.cast::<PySequence>().is_err() {
        return Ok(Some(vec![size(obj)?]));
    }
    let margins = obj.try_iter()?.map(|margin| size(&margin?)).collect::<PyResult<Vec<_>>>()?;
    let most = core::placement::MAX_PLACES;
    if margins.is_empty() || margins.len() > most {
        return Err(invalid_argument(format_args!(
            "prompt_margin names 1 to {most} distances, not {}; None learns them",
            margins.len()
        )));
    }
    Ok(Some(margins))
}

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct CheckpointPolicy(pub(crate) core::CheckpointPolicy);

#[pymethods]
impl CheckpointPolicy {
    #[new]
    #[pyo3(signature = (*, prompt_end = true, prompt_margin = None, branch = true, finish = true, follow_every = 64, every = None, max_per_request = 6))]
    fn new(
        prompt_end: bool,
        #[pyo3(from_py_with = margins)] prompt_margin: Option<Vec<u32>>,
        branch: bool,
        finish: bool,
        #[pyo3(from_py_with = size)] follow_every: u32,
        #[pyo3(from_py_with = optional_size)] every: Option<u32>,
        #[pyo3(from_py_with = size)] max_per_request: u32,
    ) -> Self {
        Self(core::CheckpointPolicy {
            prompt_end,
            prompt_margins: prompt_margin
                .map(|margins| core::placement::Lengths::from(&margins[..])),
            branch,
            finish,
            follow_every,
            every: every.filter(|&every| every > 0),
            max_per_request,
        })
    }

    #[getter]
    fn prompt_end(&self) -> bool {
        self.0.prompt_end
    }

    #[getter]
    fn prompt_margin<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(margins) = self.0.prompt_margins else { return Ok(None) };
        match margins.as_slice() {
            &[margin] => Ok(Some(margin.into_pyobject(py)?.into_any())),
            margins => Ok(Some(PyTuple::new(py, margins)?.into_any())),
        }
    }

    #[getter]
    fn branch(&self) -> bool {
        self.0.branch
    }

    #[getter]
    fn finish(&self) -> bool {
        self.0.finish
    }

    #[getter]
    fn follow_every(&self) -> u32 {
        self.0.follow_every
    }

    #[getter]
    fn every(&self) -> Option<u32> {
        self.0.every
    }

    #[getter]
    fn max_per_request(&self) -> u32 {
        self.0.max_per_request
    }
}
