//! Sizes and numbers that Python gives.

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
