//! `GroupSpec`: what a cache group keeps.

use hybrid_blocks::{self as core, GroupKind};
use pyo3::prelude::*;

use crate::batch::{optional_size, size};
use crate::group_kind::kind as kind_of;

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct GroupSpec(pub(crate) core::GroupSpec);

#[pymethods]
impl GroupSpec {
    #[new]
    #[pyo3(signature = (kind, block_size, *, window = None, slots = None, encoder_tokens = None, pool = 0))]
    fn new(
        kind: &str,
        #[pyo3(from_py_with = size)] block_size: u32,
        #[pyo3(from_py_with = optional_size)] window: Option<u32>,
        #[pyo3(from_py_with = optional_size)] slots: Option<u32>,
        #[pyo3(from_py_with = optional_size)] encoder_tokens: Option<u32>,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Self> {
        let kind = kind_of(kind, window, slots, encoder_tokens)?;
        Ok(Self(core::GroupSpec { kind, block_size, pool: core::PoolId(pool) }))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind {
            GroupKind::SlidingWindow { .. } => "sliding_window",
            GroupKind::Chunked { .. } => "chunked",
            GroupKind::State { .. } => "state",
            GroupKind::Cross { .. } => "cross",
            GroupKind::Ring => "ring",
            _ => "full",
        }
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.0.block_size
    }

    #[getter]
    fn window(&self) -> Option<u32> {
        match self.0.kind {
            GroupKind::SlidingWindow { window, .. } => Some(window),
            GroupKind::Chunked { chunk } => Some(chunk),
            _ => None,
        }
    }

    #[getter]
    fn slots(&self) -> Option<u32> {
        match self.0.kind {
            GroupKind::State { slots } => Some(slots),
            _ => None,
        }
    }

    #[getter]
    fn encoder_tokens(&self) -> Option<u32> {
        match self.0.kind {
            GroupKind::Cross { encoder_tokens } => Some(encoder_tokens),
            _ => None,
        }
    }

    #[getter]
    fn pool(&self) -> u32 {
        self.0.pool.0
    }

    fn __repr__(&self) -> String {
        let fields = [
            ("window", self.window()),
            ("slots", self.slots()),
            ("encoder_tokens", self.encoder_tokens()),
        ];
        let extra: String = fields
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| format!(", {name}={value}")))
            .collect();
        let (kind, pool) = (self.kind(), self.pool());
        format!("GroupSpec({kind:?}, {}{extra}, pool={pool})", self.block_size())
    }
}
