//! Numbers and hints that Python gives.

use hybrid_blocks::Hint;
use pyo3::prelude::*;

use crate::error::invalid_argument;

/// An integer that is not negative and fits the address space.
///
/// # Errors
/// `InvalidArgumentError` for anything else.
pub fn count(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    object.extract().map_err(|_| match object.repr() {
        Ok(given) => {
            invalid_argument(format_args!("expected a count, an int of 0 or more, not {given}"))
        }
        Err(error) => error,
    })
}

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
