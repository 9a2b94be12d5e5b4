//! [`Count`]: a size or number that Python gives.

use pyo3::prelude::*;

use crate::error::invalid_argument;

/// An integer that is not negative and fits the address space.
#[derive(Clone, Copy)]
pub(crate) struct Count(pub(crate) usize);

impl FromPyObject<'_, '_> for Count {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        obj.extract().map(Self).map_err(|_| {
            invalid_argument(format_args!("expected a count, an int of 0 or more, not {}", &*obj))
        })
    }
}
