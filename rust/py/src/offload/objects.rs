//! `ObjectStore`: chunks in a bucket or a shared folder, for any number of threads.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

use std::ops::Deref;
use std::time::Duration;

use hybrid_blocks_interop::{caught, invalid_argument};
use hybrid_blocks_offload::Namespace;
use hybrid_blocks_offload::layout::LayoutVersion;
use hybrid_blocks_offload::objects::{Location, ObjectConfig, ObjectTier, Objects};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use super::chunks::{held, to_fill, to_store, with_chunks};
use super::errors::offload_error;
use super::keys::{OffloadKey, names};
use super::region::ChunkRegion;
use super::warnings::WarningLog;

#[pyclass(frozen, module = "hybrid_blocks._core.offload")]
pub(crate) struct ObjectStore {
    objects: Objects,
    warnings: WarningLog,
}

impl ObjectStore {
    fn tier(&self) -> impl Deref<Target = ObjectTier> {
        self.objects.tier()
    }

    /// The tier, for a caller that keeps the GIL. Where another thread has it, the wait is without the GIL.
    pub(super) fn tier_attached(&self, py: Python<'_>) -> impl Deref<Target = ObjectTier> {
        loop {
            match self.objects.try_tier() {
                Some(tier) => return tier,
                None => py.detach(|| drop(self.objects.tier())),
            }
        }
    }
}

fn panicked(message: &str) -> String {
    format!("the object tier panicked: {message}")
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        invalid_argument(format_args!("{name} {value}; it must be a number of seconds, 0 or more"))
    })
}

#[pymethods]
impl ObjectStore {
    #[new]
    #[pyo3(signature = (
        url, *, layouts, queue_bytes = 268_435_456, retry_after = 60.0, list_every = 300.0
    ))]
    fn new(
        py: Python<'_>,
        url: String,
        layouts: Vec<[u8; 16]>,
        queue_bytes: u64,
        retry_after: f64,
        list_every: f64,
    ) -> PyResult<Self> {
        let namespace = Namespace::new(layouts.into_iter().map(LayoutVersion::from).collect());
        let retry_after = seconds("retry_after", retry_after)?;
        let list_every = seconds("list_every", list_every)?;
        let warnings = WarningLog::default();
        let warn = warnings.callback();
        let open = || {
            let location = Location::parse(&url)?;
            let config = ObjectConfig {
                queue_bytes,
                retry_after,
                list_every,
                ..ObjectConfig::new(location)
            };
            Objects::open(config, namespace, warn)
        };
        let objects = py.detach(|| caught(open, panicked))?;
        Ok(Self { objects: objects.map_err(offload_error)?, warnings })
    }

    #[staticmethod]
    fn check(py: Python<'_>, url: String) -> PyResult<()> {
        py.detach(|| caught(|| Location::parse(&url), panicked))?.map(drop).map_err(offload_error)
    }

    #[getter]
    fn num_chunks(&self, py: Python<'_>) -> usize {
        py.detach(|| self.tier().num_chunks())
    }

    #[getter]
    fn num_uploads(&self, py: Python<'_>) -> usize {
        py.detach(|| self.tier().num_uploads())
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

    fn store(
        &self,
        py: Python<'_>,
        keys: Vec<OffloadKey>,
        tokens: Vec<u32>,
        chunks: Vec<PyReadonlyArray1<'_, u8>>,
    ) -> PyResult<usize> {
        let all = to_store(&keys, &tokens, &chunks)?;
        py.detach(|| caught(|| self.objects.store(&all), panicked))
    }

    fn load(
        &self,
        py: Python<'_>,
        keys: Vec<OffloadKey>,
        mut chunks: Vec<PyReadwriteArray1<'_, u8>>,
    ) -> PyResult<Vec<bool>> {
        let keys = names(&keys);
        let mut buffers = to_fill(keys.len(), &mut chunks)?;
        let load = || self.objects.load(&keys, &mut buffers).iter().map(Result::is_ok).collect();
        py.detach(|| caught(load, panicked))
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
        py.detach(|| caught(|| self.objects.store(&all), panicked))
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
        let load = || self.objects.load(&keys, &mut buffers).iter().map(Result::is_ok).collect();
        py.detach(|| caught(load, panicked))
    }

    fn wait(&self, py: Python<'_>, seconds_at_most: f64) -> PyResult<bool> {
        let most = seconds("seconds_at_most", seconds_at_most)?;
        py.detach(|| caught(|| self.objects.wait(most), panicked))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| caught(|| self.objects.close(), panicked))
    }
}
