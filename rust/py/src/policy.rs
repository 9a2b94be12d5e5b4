//! `FlopModel` and `Compaction`: plain values of the core.

use hybrid_blocks as core;
use pyo3::prelude::*;

use crate::batch::size;
use hybrid_blocks_interop::invalid_argument;

#[pyclass(frozen, module = "hybrid_blocks._core")]
pub(crate) struct FlopModel(core::FlopModel);

#[pymethods]
impl FlopModel {
    #[new]
    #[pyo3(signature = (*, linear, quadratic, token_bytes, state_bytes, alpha = 1.0))]
    fn new(
        linear: f64,
        quadratic: f64,
        token_bytes: f64,
        state_bytes: f64,
        alpha: f64,
    ) -> PyResult<Self> {
        let values = [linear, quadratic, token_bytes, state_bytes, alpha];
        if values.iter().any(|value| !value.is_finite() || *value < 0.0) {
            return Err(invalid_argument(format_args!(
                "FLOPs, bytes and alpha are finite and not negative, not {values:?}"
            )));
        }
        Ok(Self(core::FlopModel { linear, quadratic, token_bytes, state_bytes, alpha }))
    }

    fn efficiency(&self, #[pyo3(from_py_with = size)] num_tokens: u32) -> f64 {
        self.0.efficiency(num_tokens)
    }
}

/// Read the policy argument of a block manager.
pub(crate) fn policy(obj: &Bound<'_, PyAny>) -> PyResult<core::Policy> {
    if let Ok(model) = obj.cast::<FlopModel>() {
        return Ok(core::Policy::FlopAware(model.get().0));
    }
    match obj.extract::<&str>() {
        Ok("lru") => Ok(core::Policy::Lru),
        Ok("explicit") => Ok(core::Policy::Explicit),
        _ => Err(invalid_argument(format_args!(
            "policy is \"lru\", \"explicit\" or a FlopModel, not {obj}"
        ))),
    }
}

#[pyclass(frozen, module = "hybrid_blocks._core")]
pub(crate) struct Compaction(pub(crate) core::Compaction);

#[pymethods]
impl Compaction {
    #[getter]
    fn num_slabs(&self) -> usize {
        self.0.num_slabs()
    }

    #[getter]
    fn num_moves(&self) -> usize {
        self.0.num_moves()
    }
}
