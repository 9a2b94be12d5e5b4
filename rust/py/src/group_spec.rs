//! `GroupSpec`: what a cache group keeps.

use hybrid_blocks as core;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{optional_size, size};
use crate::group_kind::kind as kind_of;

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct GroupSpec {
    pub(crate) spec: core::GroupSpec,
    pub(crate) kept_pool: Option<core::PoolId>,
}

#[pymethods]
impl GroupSpec {
    #[new]
    #[pyo3(signature = (kind, block_size, *, pool = 0, kept_pool = None, **parameters))]
    fn new(
        kind: &str,
        #[pyo3(from_py_with = size)] block_size: u32,
        #[pyo3(from_py_with = size)] pool: u32,
        #[pyo3(from_py_with = optional_size)] kept_pool: Option<u32>,
        parameters: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let kind = kind_of(kind, parameters)?;
        Ok(Self {
            spec: core::GroupSpec { kind, block_size, pool: core::PoolId(pool) },
            kept_pool: kept_pool.map(core::PoolId),
        })
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.spec.kind.name()
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.spec.block_size
    }

    #[getter]
    fn window(&self) -> Option<u32> {
        self.spec.kind.parameter("window")
    }

    #[getter]
    fn slots(&self) -> Option<u32> {
        self.spec.kind.parameter("slots")
    }

    #[getter]
    fn encoder_tokens(&self) -> Option<u32> {
        self.spec.kind.parameter("encoder_tokens")
    }

    #[getter]
    fn pool(&self) -> u32 {
        self.spec.pool.0
    }

    #[getter]
    fn kept_pool(&self) -> Option<u32> {
        self.kept_pool.map(|pool| pool.0)
    }

    fn __repr__(&self) -> String {
        let core::GroupSpec { kind, block_size, pool } = self.spec;
        let kept = self.kept_pool.map(|pool| format!(", kept_pool={pool}")).unwrap_or_default();
        format!("GroupSpec('{kind}', {block_size}, pool={pool}{kept})")
    }
}
