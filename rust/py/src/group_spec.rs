//! `GroupSpec`: what a cache group keeps.

use hybrid_blocks as core;
use pyo3::prelude::*;

use crate::batch::{optional_size, size};
use crate::error::invalid_argument;

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct GroupSpec(pub(crate) core::GroupSpec);

#[pymethods]
impl GroupSpec {
    #[new]
    #[pyo3(signature = (kind, block_size, *, window = None, pool = 0))]
    fn new(
        kind: &str,
        #[pyo3(from_py_with = size)] block_size: u32,
        #[pyo3(from_py_with = optional_size)] window: Option<u32>,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Self> {
        let kind = match (kind, window) {
            ("full", None) => core::GroupKind::Full,
            ("sliding_window", Some(window)) => core::GroupKind::SlidingWindow { window },
            ("chunked", Some(chunk)) => core::GroupKind::Chunked { chunk },
            _ => {
                return Err(invalid_argument(format_args!(
                    "kind {kind:?} with window {window:?}: use \"full\" without a window, or \
                     \"sliding_window\" or \"chunked\" with one"
                )));
            }
        };
        Ok(Self(core::GroupSpec { kind, block_size, pool: core::PoolId(pool) }))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind {
            core::GroupKind::Full => "full",
            core::GroupKind::SlidingWindow { .. } => "sliding_window",
            core::GroupKind::Chunked { .. } => "chunked",
            _ => "unknown",
        }
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.0.block_size
    }

    #[getter]
    fn window(&self) -> Option<u32> {
        match self.0.kind {
            core::GroupKind::SlidingWindow { window } => Some(window),
            core::GroupKind::Chunked { chunk } => Some(chunk),
            _ => None,
        }
    }

    #[getter]
    fn pool(&self) -> u32 {
        self.0.pool.0
    }

    fn __repr__(&self) -> String {
        let window = self.window().map_or(String::new(), |window| format!(", window={window}"));
        let (kind, pool) = (self.kind(), self.pool());
        format!("GroupSpec({kind:?}, {}{window}, pool={pool})", self.block_size())
    }
}
