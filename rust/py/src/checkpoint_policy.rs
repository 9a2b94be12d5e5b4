//! `CheckpointPolicy`: where recurrent states are kept for later requests.

use hybrid_blocks::{self as core, OptionValue};
use hybrid_blocks_interop::core_error;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PySequence, PyString, PyTuple};

#[pyclass(frozen, eq, str = "{0}", module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct CheckpointPolicy(pub(crate) core::CheckpointPolicy);

#[pymethods]
impl CheckpointPolicy {
    #[new]
    #[pyo3(signature = (text = "learned", /, **options))]
    fn new(text: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut policy: core::CheckpointPolicy = text.parse().map_err(core_error)?;
        for (name, value) in options.into_iter().flatten() {
            policy.set(&name.extract::<String>()?, &text_of(&value)?).map_err(core_error)?;
        }
        Ok(Self(policy))
    }

    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let options = PyDict::new(py);
        for (name, value) in self.0.options() {
            match value {
                OptionValue::Flag(flag) => options.set_item(name, flag)?,
                OptionValue::Count(count) => options.set_item(name, count)?,
                OptionValue::Format(format) => options.set_item(name, format.name())?,
                OptionValue::Tokens(tokens) => options.set_item(name, tokens)?,
                OptionValue::Distances(None) => options.set_item(name, py.None())?,
                OptionValue::Distances(Some(lengths)) => {
                    options.set_item(name, PyTuple::new(py, lengths.as_slice())?)?;
                }
            }
        }
        Ok(options)
    }

    fn __repr__(&self) -> String {
        format!("CheckpointPolicy('{}')", self.0)
    }
}

/// A value as the core reads it: `128+1024` for several numbers.
fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_none() {
        return Ok("none".into());
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true().to_string());
    }
    if value.cast::<PySequence>().is_ok() && value.cast::<PyString>().is_err() {
        let parts = value.try_iter()?.map(|part| text_of(&part?)).collect::<PyResult<Vec<_>>>()?;
        return Ok(parts.join("+"));
    }
    Ok(value.str()?.to_string())
}
