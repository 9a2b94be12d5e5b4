//! [`RequestHasher`]: what vLLM calls for every token that a request generates.

use std::sync::{Mutex, MutexGuard};

use hybrid_blocks::Digest;
use hybrid_blocks::hash::KnownPrefixes;
use hybrid_blocks_interop::{ListInts, PyBlockHasher, count, integrity_error, list_ids, token_ids};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyModule, PyTuple};

use crate::hooks::HasherHooks;
use crate::request::{Named, RequestView, span};

/// The memory of a hash as `bytes` of 32 in a tuple. Those of 16 take less.
const HASH_BYTES: usize = 80 + 8;

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
    /// Prompts without extra keys: one that begins as another did is not hashed again so far, and has
    /// the same objects for hashes.
    known: Mutex<KnownPrefixes<Py<PyTuple>>>,
    /// Memory for the tokens of a prompt. Fresh memory for each takes longer than to compare them.
    scratch: Mutex<Vec<i64>>,
}

#[pymethods]
impl RequestHasher {
    #[new]
    #[pyo3(signature = (block_size, num_lookahead_tokens, algorithm, fallback, utils, max_known_bytes))]
    fn new(
        #[pyo3(from_py_with = count)] block_size: usize,
        #[pyo3(from_py_with = count)] num_lookahead_tokens: usize,
        algorithm: String,
        fallback: Py<PyAny>,
        utils: Py<PyModule>,
        #[pyo3(from_py_with = count)] max_known_bytes: usize,
    ) -> Self {
        let block_size = block_size.max(1);
        let known =
            KnownPrefixes::new(block_size, num_lookahead_tokens, max_known_bytes, HASH_BYTES);
        Self {
            block_size,
            num_lookahead_tokens,
            algorithm,
            fallback,
            utils,
            hasher: Mutex::new(None),
            known: Mutex::new(known),
            scratch: Mutex::default(),
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
    /// Whether the last of `num_tokens` tokens may complete a hash.
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
        let extra_keys = if has_extra_keys(request, start)? {
            Some(HasherHooks(slf).extra_keys(request.object, start, num_full - num_hashed)?)
        } else {
            None
        };
        let blocks = this.hasher(py)?;
        let blocks = blocks.get();
        if let Some(last) = num_hashed.checked_sub(1) {
            let parent = hashes.get_item(last)?.cast_into::<PyBytes>()?;
            let tokens = token_ids(&tokens.get_slice(start, tokens.len()))?;
            let digests = blocks.hash_sequence(py, &tokens, Some(parent), extra_keys.as_ref())?;
            return blocks.hashes(py, &digests).map(|hashes| Some(hashes.to_list()));
        }
        let mut ids = std::mem::take(&mut *lock(&this.scratch)?);
        let (digests, new) = if extra_keys.is_some() {
            list_ids(tokens, 0, &mut ids)?;
            let digests = blocks.hash_sequence(py, &ids, None, extra_keys.as_ref())?;
            let new = blocks.hashes(py, &digests)?.to_list();
            (digests, new)
        } else {
            this.hash_prompt(blocks, tokens, &mut ids)?
        };
        *lock(&this.scratch)? = ids;
        // The manager takes them from there, which saves reading them one by one.
        request.keep(Named::default(), digests)?;
        Ok(Some(new))
    }

    /// The hashes of a prompt without extra keys, as far as they are known from those before it. Its
    /// other tokens are put into `rest`.
    fn hash_prompt<'py>(
        &self,
        blocks: &PyBlockHasher,
        tokens: &Bound<'py, PyList>,
        rest: &mut Vec<i64>,
    ) -> PyResult<(Vec<Digest>, Bound<'py, PyList>)> {
        let py = tokens.py();
        let (_, _, start) = blocks.settings(py)?;
        let num_blocks = tokens.len() / self.block_size;
        // With room for those that the request will generate, in place of a copy at the first one.
        let mut digests = Vec::with_capacity(num_blocks + num_blocks / 8 + 8);
        let mut runs = Vec::new();
        let ints = ListInts::of(tokens)?;
        let path = lock(&self.known)?.find(start, &ints, &mut digests, |run, num_hashes| {
            runs.push((run.clone_ref(py), num_hashes));
        });
        let num_known = digests.len();
        list_ids(tokens, num_known * self.block_size, rest)?;
        let parent = digests.last().map(|digest| blocks.bytes(py, digest));
        // Other threads run meanwhile, so nothing is locked.
        digests.extend(blocks.hash_sequence(py, rest, parent, None)?);
        let new = blocks.hashes(py, &digests[num_known..])?;
        let hashes = PyList::empty(py);
        for (run, num_hashes) in &runs {
            let run = run.bind(py).get_slice(0, *num_hashes);
            hashes.set_slice(hashes.len(), hashes.len(), &run)?;
        }
        hashes.set_slice(hashes.len(), hashes.len(), &new)?;
        lock(&self.known)?.remember(&path, start, rest, &digests, num_known, new.unbind());
        Ok((digests, hashes))
    }

    /// Blocks that these tokens fill.
    fn num_full(&self, tokens: &Bound<'_, PyList>) -> usize {
        tokens.len().saturating_sub(self.num_lookahead_tokens) / self.block_size
    }

    /// The hasher for vLLM's first parent.
    fn hasher(&self, py: Python<'_>) -> PyResult<Py<PyBlockHasher>> {
        let none_hash = self.utils.bind(py).getattr(intern!(py, "NONE_HASH"))?;
        let none_hash = none_hash.cast_into::<PyBytes>()?;
        if let Some(hasher) = &*lock(&self.hasher)?
            && hasher.get().starts_with(py, &none_hash)
        {
            return Ok(hasher.clone_ref(py));
        }
        let fallback = self.fallback.clone_ref(py);
        let lookahead = self.num_lookahead_tokens;
        let hasher =
            PyBlockHasher::new(&self.algorithm, self.block_size, &none_hash, fallback, lookahead)?;
        let hasher = Py::new(py, hasher)?;
        *lock(&self.hasher)? = Some(hasher.clone_ref(py));
        Ok(hasher)
    }
}

/// Whether blocks from token `start` on may have keys beside their tokens: those of images end with
/// the last one, and that of a salt is the first block's.
fn has_extra_keys(request: &RequestView<'_, '_>, start: usize) -> PyResult<bool> {
    if request.has_lora()? || request.has_embeds()? || (start == 0 && request.has_salt()?) {
        return Ok(true);
    }
    let images = request.images()?;
    match images.len().checked_sub(1) {
        Some(last) => Ok(span(&images.get_item(last)?)?.end > i64::try_from(start)?),
        None => Ok(false),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> PyResult<MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| integrity_error("the hasher is lost".to_owned()))
}
