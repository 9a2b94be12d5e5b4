//! `GroupSpec`: what a cache group keeps.

use hybrid_blocks as core;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::size;
use crate::group_kind::kind as kind_of;

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct GroupSpec(pub(crate) core::GroupSpec);

#[pymethods]
impl GroupSpec {
    #[new]
    #[pyo3(signature = (kind, block_size, *, pool = 0, **parameters))]
    fn new(
        kind: &str,
        #[pyo3(from_py_with = size)] block_size: u32,
        #[pyo3(from_py_with = size)] pool: u32,
        parameters: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let kind = kind_of(kind, parameters)?;
        Ok(Self(core::GroupSpec { kind, block_size, pool: core::PoolId(pool) }))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.name()
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.0.block_size
    }

    #[getter]
    fn window(&self) -> Option<u32> {
        self.0.kind.parameter("window")
    }

    #[getter]
    fn slots(&self) -> Option<u32> {
        self.0.kind.parameter("slots")
    }

    #[getter]
    fn encoder_tokens(&self) -> Option<u32> {
        self.0.kind.parameter("encoder_tokens")
    }

    #[getter]
    fn pool(&self) -> u32 {
        self.0.pool.0
    }

    fn __repr__(&self) -> String {
        let core::GroupSpec { kind, block_size, pool } = self.0;
        format!("GroupSpec('{kind}', {block_size}, pool={pool})")
    }
}
