//! `ObjectStore`: chunks in a bucket or a shared folder.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use hybrid_blocks_interop::invalid_argument;
use hybrid_blocks_offload::Namespace;
use hybrid_blocks_offload::layout::LayoutVersion;
use hybrid_blocks_offload::objects::{Location, ObjectConfig, ObjectTier, Objects};
use pyo3::prelude::*;

use super::chunk_store::{Below, ChunkStore, attached, unless_panicked};
use super::errors::offload_error;
use super::warnings::WarningLog;

pub(super) const NAME: &str = "object";

#[pyclass(frozen, extends = ChunkStore, module = "hybrid_blocks._core.offload")]
pub(crate) struct ObjectStore(Arc<Objects>);

impl ObjectStore {
    pub(super) fn tier_attached(&self, py: Python<'_>) -> impl Deref<Target = ObjectTier> {
        attached(py, || self.0.try_tier(), || drop(self.0.tier()))
    }
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
    ) -> PyResult<PyClassInitializer<Self>> {
        let namespace = Namespace::new(layouts.into_iter().map(LayoutVersion::from).collect());
        let retry_after = seconds("retry_after", retry_after)?;
        let list_every = seconds("list_every", list_every)?;
        let warnings = WarningLog::default();
        let warn = warnings.callback();
        let open = || {
            let config = ObjectConfig::new(Location::parse(&url)?);
            let config = ObjectConfig { queue_bytes, retry_after, list_every, ..config };
            Objects::open(config, namespace, warn)
        };
        let objects = py.detach(|| unless_panicked(NAME, open))?.map_err(offload_error)?;
        let objects = Arc::new(objects);
        let base = ChunkStore::new(Below::Objects(Arc::clone(&objects)), warnings);
        Ok(PyClassInitializer::from(base).add_subclass(Self(objects)))
    }

    #[staticmethod]
    fn check(py: Python<'_>, url: &str) -> PyResult<()> {
        let parsed = py.detach(|| unless_panicked(NAME, || Location::parse(url)))?;
        parsed.map(drop).map_err(offload_error)
    }

    #[getter]
    fn num_uploads(&self, py: Python<'_>) -> usize {
        py.detach(|| self.0.tier().num_uploads())
    }

    fn wait(&self, py: Python<'_>, seconds_at_most: f64) -> PyResult<bool> {
        let most = seconds("seconds_at_most", seconds_at_most)?;
        py.detach(|| unless_panicked(NAME, || self.0.wait(most)))
    }
}
