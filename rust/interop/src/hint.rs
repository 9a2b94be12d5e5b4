//! Hints on sessions, by their names in Python.

use hybrid_blocks::Hint;
use pyo3::prelude::*;

use crate::invalid_argument;

/// A hint by its name, or none.
///
/// # Errors
/// `InvalidArgumentError` for any other name.
pub fn optional_hint(obj: &Bound<'_, PyAny>) -> PyResult<Option<Hint>> {
    if obj.is_none() {
        return Ok(None);
    }
    let name = obj.extract::<&str>().unwrap_or_default();
    match Hint::ALL.into_iter().find(|hint| hint.name() == name) {
        Some(hint) => Ok(Some(hint)),
        None => Err(invalid_argument(format_args!(
            "hint is None or one of {:?}, not {obj}",
            Hint::ALL.map(Hint::name)
        ))),
    }
}
