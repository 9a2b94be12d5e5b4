//! `CheckpointPolicy`: where recurrent states are kept for later requests.

use hybrid_blocks as core;
use pyo3::prelude::*;

use crate::batch::{optional_size, size};

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct CheckpointPolicy(pub(crate) core::CheckpointPolicy);

#[pymethods]
impl CheckpointPolicy {
    #[new]
    #[pyo3(signature = (*, prompt_end = true, prompt_margin = 128, branch = true, finish = true, follow_every = 64, every = None, max_per_request = 4))]
    fn new(
        prompt_end: bool,
        #[pyo3(from_py_with = size)] prompt_margin: u32,
        branch: bool,
        finish: bool,
        #[pyo3(from_py_with = size)] follow_every: u32,
        #[pyo3(from_py_with = optional_size)] every: Option<u32>,
        #[pyo3(from_py_with = size)] max_per_request: u32,
    ) -> Self {
        Self(core::CheckpointPolicy {
            prompt_end,
            prompt_margin,
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
    fn prompt_margin(&self) -> u32 {
        self.0.prompt_margin
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
