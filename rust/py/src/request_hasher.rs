//! [`RequestHasher`]: what vLLM calls for every token that a request generates.

use hybrid_blocks::Digest;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::Mutex;

use crate::count::count;
use crate::error::integrity_error;

/// Decides whether there is anything to hash; a Python subclass does it, rarely.
#[pyclass(frozen, subclass, module = "hybrid_blocks._core")]
pub(crate) struct RequestHasher {
    block_size: usize,
    num_lookahead_tokens: usize,
}

#[pymethods]
impl RequestHasher {
    #[new]
    #[pyo3(signature = (block_size, num_lookahead_tokens, *_args, **_kwargs))]
    fn new(
        #[pyo3(from_py_with = count)] block_size: usize,
        #[pyo3(from_py_with = count)] num_lookahead_tokens: usize,
        _args: &Bound<'_, PyTuple>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) -> Self {
        Self { block_size: block_size.max(1), num_lookahead_tokens }
    }

    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (request.py(), slf.get());
        let tokens = request.getattr(intern!(py, "_all_token_ids"))?.len()?;
        let hashes = request.getattr(intern!(py, "block_hashes"))?.len()?;
        let complete = tokens.saturating_sub(this.num_lookahead_tokens) / this.block_size;
        if complete <= hashes {
            return Ok(PyList::empty(py).into_any());
        }
        slf.call_method1(intern!(py, "_hash"), (request, complete - hashes))
    }
}

/// Digests on their way from the hasher to the manager, which saves reading them one by one.
#[pyclass(frozen, module = "hybrid_blocks._core")]
pub(crate) struct HandedDigests(Mutex<Vec<Digest>>);

impl HandedDigests {
    pub(crate) fn new(digests: Vec<Digest>) -> Self {
        Self(Mutex::new(digests))
    }

    /// What was handed over, once.
    pub(crate) fn take(&self) -> PyResult<Vec<Digest>> {
        let mut digests = self.0.lock().map_err(|_| integrity_error("digests lost".to_owned()))?;
        Ok(std::mem::take(&mut digests))
    }
}

#[pymethods]
impl HandedDigests {
    fn __len__(&self) -> PyResult<usize> {
        let digests = self.0.lock().map_err(|_| integrity_error("digests lost".to_owned()))?;
        Ok(digests.len())
    }
}
