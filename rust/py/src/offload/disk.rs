//! `DiskStore`: chunks in segment files.

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

use hybrid_blocks_offload::Namespace;
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier, OsStorage, make_folder};
use hybrid_blocks_offload::io::best_backend;
use hybrid_blocks_offload::layout::LayoutVersion;
use pyo3::prelude::*;

use super::chunk_store::{Below, ChunkStore, attached, unless_panicked};
use super::errors::offload_error;
use super::keys::{OffloadKey, names};
use super::warnings::WarningLog;

/// Transfers that the disk works on at a time.
const DEPTH: u32 = 32;

pub(super) const NAME: &str = "disk";

#[pyclass(frozen, extends = ChunkStore, module = "hybrid_blocks._core.offload")]
pub(crate) struct DiskStore(Arc<Disk>);

impl DiskStore {
    pub(super) fn tier_attached(&self, py: Python<'_>) -> MutexGuard<'_, DiskTier> {
        attached(py, || self.0.try_tier(), || drop(self.0.tier()))
    }
}

#[pymethods]
impl DiskStore {
    #[new]
    #[pyo3(signature = (path, max_bytes, *, layouts, segment_bytes = None, largest_chunk = 0, direct = true))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        max_bytes: u64,
        layouts: Vec<[u8; 16]>,
        segment_bytes: Option<u64>,
        largest_chunk: u64,
        direct: bool,
    ) -> PyResult<PyClassInitializer<Self>> {
        let namespace = Namespace::new(layouts.into_iter().map(LayoutVersion::from).collect());
        let config =
            DiskConfig { segment_bytes, largest_chunk, direct, ..DiskConfig::new(path, max_bytes) };
        let warnings = WarningLog::default();
        let warn = warnings.callback();
        let backends = |tier| {
            let (reads, writes) = (best_backend(DEPTH), best_backend(DEPTH));
            Disk::with_backends(tier, reads, writes, Arc::new(OsStorage))
        };
        let open = || DiskTier::open(config, &namespace, warn).map(backends);
        let disk = py.detach(|| unless_panicked(NAME, open))?.map_err(offload_error)?;
        let disk = Arc::new(disk);
        let base = ChunkStore::new(Below::Disk(Arc::clone(&disk)), warnings);
        Ok(PyClassInitializer::from(base).add_subclass(Self(disk)))
    }

    #[staticmethod]
    fn make_folder(py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| unless_panicked(NAME, || make_folder(&path)))?.map_err(offload_error)
    }

    #[getter]
    fn num_bytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.0.tier().num_bytes())
    }

    fn touch(&self, py: Python<'_>, keys: Vec<OffloadKey>) {
        let keys = names(&keys);
        py.detach(|| self.0.tier().touch(&keys));
    }
}
