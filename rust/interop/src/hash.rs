//! Block hashing: `BlockHasher` and `HashChain`.

use std::str::FromStr;
use std::sync::{Mutex, MutexGuard};

use hybrid_blocks::Digest;
use hybrid_blocks::hash::{self, Algorithm, BlockKey, HashError};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::arguments::count;
use crate::error::{HybridBlocksError, invalid_argument};
use crate::extra_keys::{ExtraKeys, ExtraKeysReader};
use crate::tokens::token_ids;

/// From here on hashing takes longer than another thread's wait for the GIL costs.
const LONG_PROMPT: usize = 1 << 14;

/// Hashes blocks as vLLM does.
#[pyclass(name = "BlockHasher", frozen, module = "hybrid_blocks._core")]
pub struct PyBlockHasher {
    algorithm: Algorithm,
    block_size: usize,
    num_lookahead_tokens: usize,
    none_hash: Py<PyBytes>,
    fallback: Py<PyAny>,
}

#[pymethods]
impl PyBlockHasher {
    /// A hasher for one of vLLM's algorithms, `none_hash` before a first block, and `fallback` for
    /// extra keys that only Python can serialize.
    ///
    /// # Errors
    /// `InvalidArgumentError` for an unknown algorithm, blocks of no tokens, or a `none_hash` of
    /// another size.
    #[new]
    #[pyo3(signature = (algorithm, block_size, none_hash, fallback, *, num_lookahead_tokens = 0))]
    pub fn new(
        algorithm: &str,
        #[pyo3(from_py_with = count)] block_size: usize,
        none_hash: &Bound<'_, PyBytes>,
        fallback: Py<PyAny>,
        #[pyo3(from_py_with = count)] num_lookahead_tokens: usize,
    ) -> PyResult<Self> {
        let hasher = Self {
            algorithm: Algorithm::from_str(algorithm).map_err(invalid_argument)?,
            block_size,
            num_lookahead_tokens,
            none_hash: none_hash.clone().unbind(),
            fallback,
        };
        hasher.start(none_hash)?;
        Ok(hasher)
    }

    #[getter]
    fn algorithm(&self) -> &'static str {
        self.algorithm.name()
    }

    #[getter]
    fn block_size(&self) -> usize {
        self.block_size
    }

    #[getter]
    fn digest_size(&self) -> usize {
        self.algorithm.digest_len()
    }

    #[getter]
    fn none_hash(&self, py: Python<'_>) -> Py<PyBytes> {
        self.none_hash.clone_ref(py)
    }

    #[getter]
    fn num_lookahead_tokens(&self) -> usize {
        self.num_lookahead_tokens
    }

    #[pyo3(signature = (tokens, parent = None, extra_keys = None))]
    fn hash_block<'py>(
        &self,
        tokens: &Bound<'py, PyAny>,
        parent: Option<Bound<'py, PyBytes>>,
        extra_keys: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let py = tokens.py();
        let parent = self.parent_or_none_hash(py, parent);
        let parent_digest = self.digest(&parent)?;
        let ids = token_ids(tokens)?;
        let mut reader = ExtraKeysReader::new(&[parent.as_any(), tokens]);
        let digest = match extra_keys.map_or(ExtraKeys::Plain(None), |keys| reader.read(keys)) {
            ExtraKeys::Plain(extra) => {
                let key = BlockKey { extra: extra.as_ref(), ..BlockKey::new(&ids) };
                hash::BlockHasher::new(self.algorithm).hash_block(&parent_digest, &key)
            }
            ExtraKeys::Opaque(keys) => {
                let tokens = match tokens.cast_exact::<PyTuple>() {
                    Ok(tuple) => tuple.clone(),
                    Err(_) => PyTuple::new(py, ids)?,
                };
                self.call_fallback(&parent, &tokens, &keys)?
            }
        };
        Ok(self.bytes(py, &digest))
    }

    #[pyo3(signature = (tokens, parent = None, extra_keys = None))]
    fn hash_blocks<'py>(
        &self,
        tokens: &Bound<'py, PyAny>,
        parent: Option<Bound<'py, PyBytes>>,
        extra_keys: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = tokens.py();
        let digests = self.hash_sequence(py, &token_ids(tokens)?, parent, extra_keys)?;
        PyList::new(py, digests.iter().map(|digest| self.bytes(py, digest)))
    }

    #[pyo3(signature = (tokens, parent = None, extra_keys = None))]
    fn hash_blocks_array<'py>(
        &self,
        tokens: &Bound<'py, PyAny>,
        parent: Option<Bound<'py, PyBytes>>,
        extra_keys: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<u8>>> {
        let py = tokens.py();
        let digests = self.hash_sequence(py, &token_ids(tokens)?, parent, extra_keys)?;
        let size = self.algorithm.digest_len();
        let mut bytes = Vec::with_capacity(size * digests.len());
        for digest in &digests {
            bytes.extend_from_slice(self.algorithm.digest_bytes(digest));
        }
        PyArray1::from_vec(py, bytes).reshape([digests.len(), size])
    }

    fn __repr__(&self) -> String {
        format!("BlockHasher({:?}, block_size={})", self.algorithm.name(), self.block_size)
    }
}

impl PyBlockHasher {
    fn digest(&self, bytes: &Bound<'_, PyBytes>) -> PyResult<Digest> {
        self.algorithm.digest_from(bytes.as_bytes()).map_err(invalid_argument)
    }

    /// Whether this is the digest before a first block.
    pub fn starts_with(&self, py: Python<'_>, none_hash: &Bound<'_, PyBytes>) -> bool {
        let known = self.none_hash.bind(py);
        known.is(none_hash) || known.as_bytes() == none_hash.as_bytes()
    }

    /// A digest as Python sees it.
    pub fn bytes<'py>(&self, py: Python<'py>, digest: &Digest) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.algorithm.digest_bytes(digest))
    }

    /// Digests as Python sees them.
    ///
    /// # Errors
    /// Python's, such as `MemoryError`
    pub fn hashes<'py>(
        &self,
        py: Python<'py>,
        digests: &[Digest],
    ) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, digests.iter().map(|digest| self.bytes(py, digest)))
    }

    fn parent_or_none_hash<'py>(
        &self,
        py: Python<'py>,
        parent: Option<Bound<'py, PyBytes>>,
    ) -> Bound<'py, PyBytes> {
        parent.unwrap_or_else(|| self.none_hash.bind(py).clone())
    }

    fn start(&self, parent: &Bound<'_, PyBytes>) -> PyResult<hash::HashChain<i64>> {
        let parent = self.digest(parent)?;
        hash::HashChain::new(self.block_size, self.num_lookahead_tokens, parent)
            .map_err(invalid_argument)
    }

    /// The digests of the blocks of `tokens`, which follow `parent`, or nothing.
    ///
    /// # Errors
    /// `InvalidArgumentError` for extra keys of another number of blocks and a parent of another
    /// size; what the fallback raises.
    pub fn hash_sequence<'py>(
        &self,
        py: Python<'py>,
        tokens: &[i64],
        parent: Option<Bound<'py, PyBytes>>,
        extra_keys: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Digest>> {
        let parent = self.parent_or_none_hash(py, parent);
        self.append(&mut self.start(&parent)?, &parent, tokens, extra_keys)
    }

    /// Appends to a chain that started after `first_parent`.
    fn append<'py>(
        &self,
        chain: &mut hash::HashChain<i64>,
        first_parent: &Bound<'py, PyBytes>,
        tokens: &[i64],
        extra_keys: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Digest>> {
        let py = first_parent.py();
        let mut hasher = hash::BlockHasher::new(self.algorithm);
        let num_blocks = tokens.len() / self.block_size;
        // With room for those that the request will generate, in place of a copy at the first one.
        let mut digests = Vec::with_capacity(num_blocks + num_blocks / 8 + 8);
        let Some(extra_keys) = extra_keys.filter(|keys| !keys.is_none()) else {
            let mut hash_all = || chain.append(&mut hasher, tokens, &[], &mut digests);
            if tokens.len() < LONG_PROMPT { hash_all() } else { py.detach(hash_all) }
                .map_err(invalid_argument)?;
            return Ok(digests);
        };
        let extra_keys = ExtraKeysReader::new(&[first_parent.as_any()]).read_all(extra_keys)?;
        let (expected, actual) = (chain.num_new_blocks(tokens.len()), extra_keys.len());
        if actual != expected {
            return Err(invalid_argument(HashError::ExtraKeyCount { expected, actual }));
        }
        let is_start = chain.num_blocks() == 0;
        chain.append_with(tokens, |index, parent, key| {
            let digest = match &extra_keys[index] {
                ExtraKeys::Plain(extra) => {
                    hasher.hash_block(parent, &BlockKey { extra: extra.as_ref(), ..key })
                }
                ExtraKeys::Opaque(keys) => {
                    let parent = match index {
                        0 if is_start => first_parent.clone(),
                        _ => self.bytes(py, parent),
                    };
                    let keys = with_lookahead(keys, key.lookahead)?;
                    self.call_fallback(&parent, &PyTuple::new(py, key.tokens)?, &keys)?
                }
            };
            digests.push(digest);
            Ok::<_, PyErr>(digest)
        })?;
        Ok(digests)
    }

    fn call_fallback<'py>(
        &self,
        parent: &Bound<'py, PyBytes>,
        tokens: &Bound<'py, PyTuple>,
        extra_keys: &Bound<'py, PyAny>,
    ) -> PyResult<Digest> {
        let result = self.fallback.bind(parent.py()).call1(((parent, tokens, extra_keys),))?;
        let bytes = result.cast::<PyBytes>().map_err(|_| {
            let kind = result.get_type();
            invalid_argument(format_args!("the fallback returned {kind}, not bytes"))
        })?;
        self.digest(bytes)
    }
}

/// `extra_keys`, or `(extra_keys, *lookahead)` where there is any.
fn with_lookahead<'py>(
    extra_keys: &Bound<'py, PyAny>,
    lookahead: &[i64],
) -> PyResult<Bound<'py, PyAny>> {
    if lookahead.is_empty() {
        return Ok(extra_keys.clone());
    }
    let py = extra_keys.py();
    let lookahead = PyTuple::new(py, lookahead)?;
    Ok(PyTuple::new(py, [extra_keys])?.as_sequence().concat(lookahead.as_sequence())?.into_any())
}

/// The hashes of one sequence that grows.
#[pyclass(name = "HashChain", frozen, module = "hybrid_blocks._core")]
pub struct PyHashChain {
    hasher: Py<PyBlockHasher>,
    first_parent: Py<PyBytes>,
    chain: Mutex<hash::HashChain<i64>>,
}

#[pymethods]
impl PyHashChain {
    #[new]
    #[pyo3(signature = (hasher, parent = None))]
    fn new(
        py: Python<'_>,
        hasher: Py<PyBlockHasher>,
        parent: Option<Bound<'_, PyBytes>>,
    ) -> PyResult<Self> {
        let first_parent = hasher.get().parent_or_none_hash(py, parent);
        let chain = Mutex::new(hasher.get().start(&first_parent)?);
        Ok(Self { first_parent: first_parent.unbind(), chain, hasher })
    }

    #[pyo3(signature = (tokens, extra_keys = None))]
    fn append<'py>(
        &self,
        tokens: &Bound<'py, PyAny>,
        extra_keys: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, hasher) = (tokens.py(), self.hasher.get());
        let (tokens, first_parent) = (token_ids(tokens)?, self.first_parent.bind(py));
        let digests = hasher.append(&mut *self.lock()?, first_parent, &tokens, extra_keys)?;
        PyList::new(py, digests.iter().map(|digest| hasher.bytes(py, digest)))
    }

    fn num_new_blocks(&self, #[pyo3(from_py_with = count)] num_tokens: usize) -> PyResult<usize> {
        Ok(self.lock()?.num_new_blocks(num_tokens))
    }

    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.hasher.get().bytes(py, self.lock()?.parent()))
    }

    #[getter]
    fn num_blocks(&self) -> PyResult<usize> {
        Ok(self.lock()?.num_blocks())
    }

    #[getter]
    fn num_tokens(&self) -> PyResult<usize> {
        Ok(self.lock()?.num_tokens())
    }
}

impl PyHashChain {
    /// Never waits: an append in progress may be running Python code that comes back here.
    fn lock(&self) -> PyResult<MutexGuard<'_, hash::HashChain<i64>>> {
        self.chain.try_lock().map_err(|_| {
            HybridBlocksError::new_err(
                "an append to this HashChain is in progress; use one chain a sequence",
            )
        })
    }
}

/// The part of a hasher that the block manager needs.
impl PyBlockHasher {
    /// Tokens a block, the algorithm, and the digest before a first block's.
    ///
    /// # Errors
    /// None: the first parent was checked when the hasher was made.
    pub fn settings(&self, py: Python<'_>) -> PyResult<(usize, Algorithm, Digest)> {
        Ok((self.block_size, self.algorithm, self.digest(self.none_hash.bind(py))?))
    }

    /// Hashes a prompt; the chain can continue with the tokens that follow.
    ///
    /// # Errors
    /// As [`PyBlockHasher::hash_sequence`], and `InvalidArgumentError` for other things than
    /// token ids.
    pub fn hash_prompt(
        &self,
        tokens: &Bound<'_, PyAny>,
        extra_keys: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(hash::HashChain<i64>, Vec<Digest>)> {
        let first_parent = self.none_hash.bind(tokens.py());
        let mut chain = self.start(first_parent)?;
        let tokens = token_ids(tokens)?;
        let digests = self.append(&mut chain, first_parent, &tokens, extra_keys)?;
        Ok((chain, digests))
    }
}
