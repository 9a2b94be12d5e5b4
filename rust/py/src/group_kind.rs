//! `GroupKind`: the core's table of kinds, for planners and checks.

use std::collections::BTreeMap;

use hybrid_blocks as core;
use hybrid_blocks_interop::{core_error, invalid_argument};
use numpy::{PyArrayDyn, PyReadonlyArrayDyn, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{optional_size, size};

#[pyclass(frozen, eq, str = "{0}", module = "hybrid_blocks._core")]
#[derive(Clone, PartialEq)]
pub(crate) struct GroupKind(core::GroupKind);

/// A number of tokens, or an array of them.
#[derive(FromPyObject)]
enum Tokens<'py> {
    One(u32),
    Many(PyReadonlyArrayDyn<'py, i64>),
}

impl Tokens<'_> {
    fn map<'py>(&self, py: Python<'py>, rule: impl Fn(u32) -> u32) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::One(count) => Ok(rule(*count).into_pyobject(py)?.into_any()),
            Self::Many(counts) => {
                let counts = counts.as_array();
                if let Some(count) = counts.iter().find(|&&count| u32::try_from(count).is_err()) {
                    return Err(invalid_argument(format_args!("{count} is no number of tokens")));
                }
                let ruled = counts.mapv(|count| i64::from(rule(count.cast_unsigned() as u32)));
                let ruled: Bound<'py, PyArrayDyn<i64>> = ruled.to_pyarray(py);
                Ok(ruled.into_any())
            }
        }
    }
}

#[pymethods]
impl GroupKind {
    #[new]
    #[pyo3(signature = (name, **parameters))]
    fn new(name: &str, parameters: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        kind(name, parameters).map(Self)
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    #[getter]
    fn parameters(&self) -> BTreeMap<&'static str, u32> {
        self.0.parameters().collect()
    }

    #[getter]
    fn is_cached(&self) -> bool {
        self.0.role() != core::Role::None
    }

    fn __repr__(&self) -> String {
        format!("GroupKind('{}')", self.0)
    }

    fn num_skipped_tokens<'py>(
        &self,
        py: Python<'py>,
        num_computed: Tokens<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        num_computed.map(py, |count| self.0.num_skipped_tokens(count))
    }

    fn num_live_tokens<'py>(
        &self,
        py: Python<'py>,
        num_tokens: Tokens<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        num_tokens.map(py, |count| self.0.num_live_tokens(count))
    }

    fn peak_tokens(&self, num_tokens: u64, #[pyo3(from_py_with = size)] max_chunk: u32) -> u64 {
        self.0.peak_tokens(num_tokens, max_chunk)
    }

    fn peak_blocks(
        &self,
        num_tokens: u64,
        #[pyo3(from_py_with = size)] max_chunk: u32,
        #[pyo3(from_py_with = size)] block_size: u32,
    ) -> u64 {
        self.0.peak_blocks(num_tokens, max_chunk, block_size.max(1))
    }
}

/// The kind of a name, or of a text with numbers, and of keywords; those that are None are not given.
pub(crate) fn kind(text: &str, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<core::GroupKind> {
    let mut given = Vec::new();
    for (name, value) in keywords.into_iter().flatten() {
        if let Some(value) = optional_size(&value)? {
            given.push((name.extract::<String>()?, value));
        }
    }
    if given.is_empty() {
        return text.parse().map_err(core_error);
    }
    let given: Vec<_> = given.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    core::GroupKind::parse(text, &given).map_err(core_error)
}
