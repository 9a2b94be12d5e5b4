//! `FlopModel`: what computing costs, and the policy argument that it can be.

use hybrid_blocks as core;
use pyo3::prelude::*;

use hybrid_blocks_interop::invalid_argument;

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
#[derive(PartialEq)]
pub(crate) struct FlopModel(core::FlopModel);

#[pymethods]
impl FlopModel {
    #[new]
    #[pyo3(signature = (*, linear, quadratic, alpha = 1.0))]
    fn new(linear: f64, quadratic: f64, alpha: f64) -> PyResult<Self> {
        let values = [linear, quadratic, alpha];
        if values.iter().any(|value| !value.is_finite() || *value < 0.0) {
            return Err(invalid_argument(format_args!(
                "FLOPs and alpha are finite and not negative, not {values:?}"
            )));
        }
        Ok(Self(core::FlopModel { linear, quadratic, alpha }))
    }

    #[getter]
    fn linear(&self) -> f64 {
        self.0.linear
    }

    #[getter]
    fn quadratic(&self) -> f64 {
        self.0.quadratic
    }

    #[getter]
    fn alpha(&self) -> f64 {
        self.0.alpha
    }
}

/// Reads the policy argument of a block manager.
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
