//! `RequestKeys`: the keys of a request's chunks, read from Python once and not in each look-up.

use hybrid_blocks::{Digest, Key};
use hybrid_blocks_interop::{Guarded, invalid_argument};
use pyo3::prelude::*;

use super::host::HostCache;
use super::keys::{OffloadKey, check_groups, paired};

#[pyclass(frozen, module = "hybrid_blocks._core.offload")]
pub(crate) struct RequestKeys {
    hash_block_size: u32,
    num_groups: usize,
    known: Guarded<Known>,
}

/// Keys and digests of a request so far.
#[derive(Default)]
pub(super) struct Known {
    pub(super) chunks: Vec<(Key, u32)>,
    /// By hash block, zeros where no key stands.
    pub(super) digests: Vec<Digest>,
    /// Bytes of a digest.
    pub(super) digest_size: usize,
}

impl Known {
    fn add(&mut self, chunks: Vec<(Key, u32)>, hash_block_size: u32) {
        for &(key, num_tokens) in &chunks {
            let place = (num_tokens / hash_block_size - 1) as usize;
            if place >= self.digests.len() {
                self.digests.resize(place + 1, Digest::from([0; 32]));
            }
            self.digests[place] = key.digest;
        }
        self.chunks.extend(chunks);
    }
}

impl RequestKeys {
    /// Runs `call` with what is known.
    pub(super) fn with<R>(&self, py: Python<'_>, call: impl FnOnce(&Known) -> R) -> PyResult<R> {
        self.known.with(py, |known| call(known))
    }
}

#[pymethods]
impl RequestKeys {
    #[new]
    fn new(cache: &HostCache) -> Self {
        let (hash_block_size, num_groups) = cache.cut();
        Self { hash_block_size, num_groups, known: Guarded::new(Known::default()) }
    }

    fn extend(&self, py: Python<'_>, keys: Vec<OffloadKey>, tokens: Vec<u32>) -> PyResult<()> {
        check_groups(&keys, self.num_groups)?;
        let chunks = paired(&keys, &tokens)?;
        let size = self.hash_block_size;
        let is_wrong = |tokens: &&u32| **tokens == 0 || !tokens.is_multiple_of(size);
        if let Some(tokens) = tokens.iter().find(is_wrong) {
            return Err(invalid_argument(format_args!(
                "a key for {tokens} tokens; it must be a positive multiple of {size} tokens"
            )));
        }
        self.known.with(py, |known| {
            known.digest_size = keys.first().map_or(known.digest_size, |key| key.digest_size);
            known.add(chunks, size);
        })
    }

    #[getter]
    fn num_tokens(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |known| known.chunks.last().map_or(0, |&(_, num_tokens)| num_tokens))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |known| known.chunks.len())
    }
}
