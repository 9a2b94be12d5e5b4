//! `DiskStore`: chunks in segment files, for any number of threads.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

use std::sync::{Arc, MutexGuard};

use hybrid_blocks::Key;
use hybrid_blocks_interop::caught;
use hybrid_blocks_offload::Namespace;
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier, OsStorage, make_folder};
use hybrid_blocks_offload::io::best_backend;
use hybrid_blocks_offload::layout::LayoutVersion;
use hybrid_blocks_offload::plan::{Previous, Tier};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use super::chunks::{held, to_fill, to_store, with_chunks};
use super::errors::offload_error;
use super::keys::{OffloadKey, names};
use super::region::ChunkRegion;
use super::warnings::WarningLog;

/// Transfers that the disk works on at a time.
const DEPTH: u32 = 32;

#[pyclass(frozen, module = "hybrid_blocks._core.offload")]
pub(crate) struct DiskStore {
    disk: Disk,
    warnings: WarningLog,
}

impl DiskStore {
    fn tier(&self) -> MutexGuard<'_, DiskTier> {
        self.disk.tier()
    }

    /// The tier, for a caller that keeps the GIL. Where another thread has it, the wait is without the GIL.
    pub(super) fn tier_attached(&self, py: Python<'_>) -> MutexGuard<'_, DiskTier> {
        loop {
            match self.disk.try_tier() {
                Some(tier) => return tier,
                None => py.detach(|| drop(self.disk.tier())),
            }
        }
    }
}

fn panicked(message: &str) -> String {
    format!("the disk tier panicked: {message}")
}

#[pymethods]
impl DiskStore {
    #[new]
    #[pyo3(signature = (path, max_bytes, *, layouts, segment_bytes = None, largest_chunk = 0, direct = true))]
    fn new(
        py: Python<'_>,
        path: std::path::PathBuf,
        max_bytes: u64,
        layouts: Vec<[u8; 16]>,
        segment_bytes: Option<u64>,
        largest_chunk: u64,
        direct: bool,
    ) -> PyResult<Self> {
        let namespace = Namespace::new(layouts.into_iter().map(LayoutVersion::from).collect());
        let config =
            DiskConfig { segment_bytes, largest_chunk, direct, ..DiskConfig::new(path, max_bytes) };
        let warnings = WarningLog::default();
        let warn = warnings.callback();
        let open = || DiskTier::open(config, &namespace, warn);
        let disk = py.detach(|| {
            let backends = |tier| {
                let (reads, writes) = (best_backend(DEPTH), best_backend(DEPTH));
                Disk::with_backends(tier, reads, writes, Arc::new(OsStorage))
            };
            caught(|| open().map(backends), panicked)
        })?;
        Ok(Self { disk: disk.map_err(offload_error)?, warnings })
    }

    #[staticmethod]
    fn make_folder(py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        py.detach(|| caught(|| make_folder(&path), panicked))?.map_err(offload_error)
    }

    #[getter]
    fn num_chunks(&self, py: Python<'_>) -> usize {
        py.detach(|| self.tier().num_chunks())
    }

    #[getter]
    fn num_bytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.tier().num_bytes())
    }

    #[getter]
    fn is_paused(&self, py: Python<'_>) -> bool {
        py.detach(|| self.tier().is_paused())
    }

    fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    fn contains(&self, py: Python<'_>, keys: Vec<OffloadKey>) -> Vec<bool> {
        py.detach(|| held(&*self.tier(), &keys))
    }

    fn touch(&self, py: Python<'_>, keys: Vec<OffloadKey>) {
        let keys = names(&keys);
        py.detach(|| self.tier().touch(&keys));
    }

    fn store(
        &self,
        py: Python<'_>,
        keys: Vec<OffloadKey>,
        tokens: Vec<u32>,
        chunks: Vec<PyReadonlyArray1<'_, u8>>,
    ) -> PyResult<usize> {
        let all = to_store(&keys, &tokens, &chunks)?;
        py.detach(|| caught(|| self.disk.store(&all).num_written, panicked))
    }

    fn load(
        &self,
        py: Python<'_>,
        keys: Vec<OffloadKey>,
        mut chunks: Vec<PyReadwriteArray1<'_, u8>>,
    ) -> PyResult<Vec<bool>> {
        let keys = names(&keys);
        let mut buffers = to_fill(keys.len(), &mut chunks)?;
        py.detach(|| caught(|| self.load_found(&keys, &mut buffers), panicked))
    }

    fn store_from(
        &self,
        py: Python<'_>,
        region: &ChunkRegion,
        keys: Vec<OffloadKey>,
        tokens: Vec<u32>,
        offsets: Vec<usize>,
    ) -> PyResult<usize> {
        let all = with_chunks(&keys, &tokens, region.chunks(&keys, &offsets)?)?;
        py.detach(|| caught(|| self.disk.store(&all).num_written, panicked))
    }

    fn load_into(
        &self,
        py: Python<'_>,
        region: &ChunkRegion,
        keys: Vec<OffloadKey>,
        offsets: Vec<usize>,
    ) -> PyResult<Vec<bool>> {
        let mut buffers = region.buffers(&keys, &offsets)?;
        let keys = names(&keys);
        py.detach(|| caught(|| self.load_found(&keys, &mut buffers), panicked))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| caught(|| self.disk.close(), panicked))
    }
}

impl DiskStore {
    /// Loads what is there; `false` for what is not, or is damaged.
    fn load_found(&self, keys: &[Key], buffers: &mut [&mut [u8]]) -> Vec<bool> {
        let mut loaded = vec![false; keys.len()];
        // A chunk may go between the look-up and the read.
        for _ in 0..3 {
            let found: Vec<_> = {
                let tier = self.tier();
                let slot = |key: &Key| tier.find(key, Previous::default());
                keys.iter().map(|key| Some((*key, slot(key)?))).collect()
            };
            let (wanted, mut into): (Vec<_>, Vec<_>) = found
                .iter()
                .zip(buffers.iter_mut())
                .filter_map(|(found, buffer)| Some(((*found)?, &mut **buffer)))
                .unzip();
            let Some(results) = self.disk.load(&wanted, &mut into) else { continue };
            let mut results = results.iter();
            for (loaded, found) in loaded.iter_mut().zip(&found) {
                *loaded = found.is_some() && results.next().is_some_and(Result::is_ok);
            }
            break;
        }
        loaded
    }
}
