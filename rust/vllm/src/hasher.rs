//! [`RequestHasher`]: what vLLM calls for every token that a request generates.

use std::sync::Mutex;

use hybrid_blocks_interop::{PyBlockHasher, count, integrity_error, token_ids};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyModule};

use crate::request::{Named, RequestView};

/// Hashes the blocks of requests that became full; a Python subclass knows their extra keys.
#[pyclass(frozen, subclass, module = "hybrid_blocks._core.vllm")]
pub(crate) struct RequestHasher {
    block_size: usize,
    num_lookahead_tokens: usize,
    algorithm: String,
    fallback: Py<PyAny>,
    /// vLLM's module, whose `NONE_HASH` a process sets when it starts.
    utils: Py<PyModule>,
    hasher: Mutex<Option<Py<PyBlockHasher>>>,
}

#[pymethods]
impl RequestHasher {
    #[new]
    #[pyo3(signature = (block_size, num_lookahead_tokens, algorithm, fallback, utils))]
    fn new(
        #[pyo3(from_py_with = count)] block_size: usize,
        #[pyo3(from_py_with = count)] num_lookahead_tokens: usize,
        algorithm: String,
        fallback: Py<PyAny>,
        utils: Py<PyModule>,
    ) -> Self {
        let hasher = Mutex::new(None);
        Self {
            block_size: block_size.max(1),
            num_lookahead_tokens,
            algorithm,
            fallback,
            utils,
            hasher,
        }
    }

    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        request: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = request.py();
        let tokens = request.getattr(intern!(py, "_all_token_ids"))?.cast_into::<PyList>()?;
        let hashes = request.getattr(intern!(py, "block_hashes"))?.cast_into::<PyList>()?;
        if slf.get().num_full(&tokens) <= hashes.len() {
            return Ok(PyList::empty(py));
        }
        let new = Self::new_hashes(slf, &RequestView::new(request)?, &tokens, &hashes)?;
        Ok(new.unwrap_or_else(|| PyList::empty(py)))
    }
}

impl RequestHasher {
    /// Whether the last of so many tokens may complete a hash.
    pub(crate) fn ends_block(&self, num_tokens: usize) -> bool {
        num_tokens.saturating_sub(self.num_lookahead_tokens).is_multiple_of(self.block_size)
    }

    /// The hashes of the blocks that became full since the last call, if any did.
    pub(crate) fn new_hashes<'py>(
        slf: &Bound<'py, Self>,
        request: &RequestView<'_, 'py>,
        tokens: &Bound<'py, PyList>,
        hashes: &Bound<'py, PyList>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let (py, this) = (slf.py(), slf.get());
        let (num_full, num_hashed) = (this.num_full(tokens), hashes.len());
        if num_full <= num_hashed {
            return Ok(None);
        }
        let start = num_hashed * this.block_size;
        let extra_keys = if request.has_encoder_inputs()?
            || request.has_lora()?
            || request.has_salt()?
            || request.has_embeds()?
        {
            let arguments = (request.object, start, num_full - num_hashed);
            Some(slf.call_method1(intern!(py, "_extra_keys"), arguments)?)
        } else {
            None
        };
        let blocks = this.hasher(py)?;
        let blocks = blocks.get();
        let digests = if let Some(last) = num_hashed.checked_sub(1) {
            let parent = hashes.get_item(last)?.cast_into::<PyBytes>()?;
            let tokens = token_ids(&tokens.get_slice(start, tokens.len()))?;
            blocks.hash_sequence(py, &tokens, Some(parent), extra_keys.as_ref())?
        } else {
            blocks.hash_sequence(py, &token_ids(tokens)?, None, extra_keys.as_ref())?
        };
        let new = PyList::new(py, digests.iter().map(|digest| blocks.bytes(py, digest)))?;
        if num_hashed == 0 {
            // The manager takes them from there, which saves reading them one by one.
            request.keep(Named::default(), digests)?;
        }
        Ok(Some(new))
    }

    /// Blocks that so many tokens fill.
    fn num_full(&self, tokens: &Bound<'_, PyList>) -> usize {
        tokens.len().saturating_sub(self.num_lookahead_tokens) / self.block_size
    }

    /// The hasher for vLLM's first parent.
    fn hasher(&self, py: Python<'_>) -> PyResult<Py<PyBlockHasher>> {
        let none_hash = self.utils.bind(py).getattr(intern!(py, "NONE_HASH"))?;
        let none_hash = none_hash.cast_into::<PyBytes>()?;
        if let Some(hasher) = &*self.lock()?
            && hasher.get().starts_with(py, &none_hash)
        {
            return Ok(hasher.clone_ref(py));
        }
        let fallback = self.fallback.clone_ref(py);
        let lookahead = self.num_lookahead_tokens;
        let hasher =
            PyBlockHasher::new(&self.algorithm, self.block_size, &none_hash, fallback, lookahead)?;
        let hasher = Py::new(py, hasher)?;
        *self.lock()? = Some(hasher.clone_ref(py));
        Ok(hasher)
    }

    fn lock(&self) -> PyResult<std::sync::MutexGuard<'_, Option<Py<PyBlockHasher>>>> {
        self.hasher.lock().map_err(|_| integrity_error("the hasher is lost".to_owned()))
    }
}
