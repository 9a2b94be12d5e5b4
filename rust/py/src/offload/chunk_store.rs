//! `ChunkStore`: chunks below host memory, on a disk or as objects, for any number of threads.

use std::sync::Arc;

use hybrid_blocks::Key;
use hybrid_blocks_interop::{caught, invalid_argument};
use hybrid_blocks_offload::disk::Disk;
use hybrid_blocks_offload::objects::Objects;
use hybrid_blocks_offload::plan::{Previous, Tier};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use super::keys::{OffloadKey, names, paired};
use super::region::ChunkRegion;
use super::warnings::WarningLog;
use super::{disk, objects};

/// A tier below host memory and its transfers.
pub(super) enum Below {
    Disk(Arc<Disk>),
    Objects(Arc<Objects>),
}

/// Makes a call of the tier there is.
macro_rules! each {
    ($below:expr, $it:ident => $call:expr) => {
        match &$below {
            Below::Disk($it) => $call,
            Below::Objects($it) => $call,
        }
    };
}

#[pyclass(frozen, subclass, module = "hybrid_blocks._core.offload")]
pub(crate) struct ChunkStore {
    below: Below,
    warnings: WarningLog,
}

impl ChunkStore {
    pub(super) fn new(below: Below, warnings: WarningLog) -> Self {
        Self { below, warnings }
    }

    /// Runs a transfer without the GIL.
    fn transfer<R: Send>(&self, py: Python<'_>, call: impl FnOnce() -> R + Send) -> PyResult<R> {
        py.detach(|| {
            unless_panicked(
                match self.below {
                    Below::Disk(_) => disk::NAME,
                    Below::Objects(_) => objects::NAME,
                },
                call,
            )
        })
    }

    fn load_all(
        &self,
        py: Python<'_>,
        keys: &[OffloadKey],
        buffers: &mut [&mut [u8]],
    ) -> PyResult<Vec<bool>> {
        let keys = names(keys);
        self.transfer(py, || match &self.below {
            Below::Disk(disk) => load_found(disk, &keys, buffers),
            Below::Objects(objects) => {
                objects.load(&keys, buffers).iter().map(Result::is_ok).collect()
            }
        })
    }

    fn store_all(
        &self,
        py: Python<'_>,
        keys: &[OffloadKey],
        tokens: &[u32],
        chunks: Vec<&[u8]>,
    ) -> PyResult<usize> {
        let named = paired(keys, tokens)?.into_iter().zip(chunks);
        let all: Vec<_> = named.map(|((key, tokens), chunk)| (key, tokens, chunk)).collect();
        self.transfer(py, || each!(self.below, it => it.store(&all)))
    }
}

#[pymethods]
impl ChunkStore {
    #[getter]
    fn num_chunks(&self, py: Python<'_>) -> usize {
        py.detach(|| each!(self.below, it => it.tier().num_chunks()))
    }

    #[getter]
    fn is_paused(&self, py: Python<'_>) -> bool {
        py.detach(|| each!(self.below, it => it.tier().is_paused()))
    }

    fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    fn contains(&self, py: Python<'_>, keys: Vec<OffloadKey>) -> Vec<bool> {
        let keys = names(&keys);
        py.detach(|| each!(self.below, it => held(&*it.tier(), &keys)))
    }

    fn store(
        &self,
        py: Python<'_>,
        keys: Vec<OffloadKey>,
        tokens: Vec<u32>,
        chunks: Vec<PyReadonlyArray1<'_, u8>>,
    ) -> PyResult<usize> {
        same_len(keys.len(), chunks.len())?;
        let chunks = chunks.iter().map(|it| Ok(it.as_slice()?)).collect::<PyResult<_>>()?;
        self.store_all(py, &keys, &tokens, chunks)
    }

    fn load(
        &self,
        py: Python<'_>,
        keys: Vec<OffloadKey>,
        mut chunks: Vec<PyReadwriteArray1<'_, u8>>,
    ) -> PyResult<Vec<bool>> {
        same_len(keys.len(), chunks.len())?;
        let buffers = chunks.iter_mut().map(|it| Ok(it.as_slice_mut()?));
        self.load_all(py, &keys, &mut buffers.collect::<PyResult<Vec<_>>>()?)
    }

    fn store_from(
        &self,
        py: Python<'_>,
        region: &ChunkRegion,
        keys: Vec<OffloadKey>,
        tokens: Vec<u32>,
        offsets: Vec<usize>,
    ) -> PyResult<usize> {
        self.store_all(py, &keys, &tokens, region.chunks(&keys, &offsets)?)
    }

    fn load_into(
        &self,
        py: Python<'_>,
        region: &ChunkRegion,
        keys: Vec<OffloadKey>,
        offsets: Vec<usize>,
    ) -> PyResult<Vec<bool>> {
        self.load_all(py, &keys, &mut region.buffers(&keys, &offsets)?)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.transfer(py, || each!(self.below, it => it.close()))
    }
}

/// Loads the chunks that a disk has; `false` for others, and for those that are damaged.
fn load_found(disk: &Disk, keys: &[Key], buffers: &mut [&mut [u8]]) -> Vec<bool> {
    let mut loaded = vec![false; keys.len()];
    // A chunk may go between the look-up and the read.
    for _ in 0..3 {
        let found: Vec<_> = {
            let tier = disk.tier();
            let slot = |key: &Key| tier.find(key, Previous::default());
            keys.iter().map(|key| Some((*key, slot(key)?))).collect()
        };
        let (wanted, mut into): (Vec<_>, Vec<_>) = found
            .iter()
            .zip(buffers.iter_mut())
            .filter_map(|(found, buffer)| Some(((*found)?, &mut **buffer)))
            .unzip();
        let Some(results) = disk.load(&wanted, &mut into) else { continue };
        let mut results = results.iter();
        for (loaded, found) in loaded.iter_mut().zip(&found) {
            *loaded = found.is_some() && results.next().is_some_and(Result::is_ok);
        }
        break;
    }
    loaded
}

/// Runs a call of a tier; a panic becomes an `IntegrityError` that names it.
pub(super) fn unless_panicked<R>(name: &str, call: impl FnOnce() -> R) -> PyResult<R> {
    caught(call, |message| format!("the {name} tier panicked: {message}"))
}

/// Whether a tier holds each key.
fn held(tier: &impl Tier, keys: &[Key]) -> Vec<bool> {
    keys.iter().map(|key| tier.find(key, Previous::default()).is_some()).collect()
}

/// A tier, for a caller that keeps the GIL. Where another thread has it, the wait is without the GIL.
pub(super) fn attached<T>(
    py: Python<'_>,
    get: impl Fn() -> Option<T>,
    wait: impl Fn() + Sync,
) -> T {
    loop {
        match get() {
            Some(tier) => return tier,
            None => py.detach(&wait),
        }
    }
}

/// Refuses chunks that are not one a key.
fn same_len(num_keys: usize, num_chunks: usize) -> PyResult<()> {
    if num_keys == num_chunks {
        return Ok(());
    }
    Err(invalid_argument(format_args!("{num_keys} keys with {num_chunks} chunks of bytes")))
}
