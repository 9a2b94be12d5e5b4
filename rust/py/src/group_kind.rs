//! `GroupKind`: the core's table of kinds, for planners and checks.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

use hybrid_blocks as core;
use hybrid_blocks_interop::invalid_argument;
use numpy::{PyArrayDyn, PyReadonlyArrayDyn, ToPyArray};
use pyo3::prelude::*;

use crate::batch::{optional_size, size};

#[pyclass(frozen, eq, module = "hybrid_blocks._core")]
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
    #[pyo3(signature = (name, *, window = None, slots = None, encoder_tokens = None))]
    fn new(
        name: &str,
        #[pyo3(from_py_with = optional_size)] window: Option<u32>,
        #[pyo3(from_py_with = optional_size)] slots: Option<u32>,
        #[pyo3(from_py_with = optional_size)] encoder_tokens: Option<u32>,
    ) -> PyResult<Self> {
        kind(name, window, slots, encoder_tokens).map(Self)
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

/// The kind of a name with its parameters.
pub(crate) fn kind(
    name: &str,
    window: Option<u32>,
    slots: Option<u32>,
    encoder_tokens: Option<u32>,
) -> PyResult<core::GroupKind> {
    Ok(match (name, window, slots, encoder_tokens) {
        ("full", None, None, None) => core::GroupKind::Full,
        ("sliding_window", Some(window @ 1..), None, None) => {
            core::GroupKind::sliding_window(window)
        }
        ("chunked", Some(chunk @ 1..), None, None) => core::GroupKind::Chunked { chunk },
        ("state", None, slots, None) => core::GroupKind::State { slots: slots.unwrap_or(1) },
        ("ring", None, None, None) => core::GroupKind::Ring,
        ("cross", None, None, Some(encoder_tokens)) => core::GroupKind::Cross { encoder_tokens },
        _ => {
            let given = [("window", window), ("slots", slots), ("encoder_tokens", encoder_tokens)];
            let given = given.map(|(name, value)| Some(format!(", {name}={}", value?)));
            let given: String = given.into_iter().flatten().collect();
            return Err(invalid_argument(format_args!(
                "kind={name:?}{given}: use \"full\" or \"ring\" alone, \"sliding_window\" or \
                 \"chunked\" with a window of at least 1, \"state\" with slots, or \"cross\" \
                 with encoder_tokens"
            )));
        }
    })
}
