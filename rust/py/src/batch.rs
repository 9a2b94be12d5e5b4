//! Handles and counts as Python gives them: one at a time, or as numpy arrays that are not copied.

use hybrid_blocks::BlockManager;
use numpy::{PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use hybrid_blocks_interop::invalid_argument;

/// A request handle.
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) u64);

/// Types of one-dimensional contiguous arrays: name, element, and what the array is called in errors.
macro_rules! arrays {
    ($($(#[$doc:meta])* $name:ident: $element:ty = $what:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name<'py>(PyReadonlyArray1<'py, $element>);

        impl<'py> FromPyObject<'_, 'py> for $name<'py> {
            type Error = PyErr;

            fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
                array(obj, $what).map(Self)
            }
        }
    )*};
}

arrays! {
    /// Request handles.
    Handles: i64 = "handles (int64)";
    /// Counts, none of them negative.
    Counts: i32 = "counts (int32)";
    /// Token ids.
    TokenArray: i32 = "tokens (int32)";
}

impl Handles<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<&[u64]> {
        Ok(bytemuck::cast_slice(self.0.as_slice()?))
    }
}

impl Counts<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<&[u32]> {
        unsigned(self.0.as_slice()?, "a count is 0 or more, not")
    }
}

impl TokenArray<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<&[i32]> {
        Ok(self.0.as_slice()?)
    }
}

fn unsigned<'a>(values: &'a [i32], refusal: &str) -> PyResult<&'a [u32]> {
    match values.iter().find(|&&value| value < 0) {
        Some(value) => Err(invalid_argument(format_args!("{refusal} {value}"))),
        None => Ok(bytemuck::cast_slice(values)),
    }
}

fn array<'py, T: numpy::Element>(
    obj: Borrowed<'_, 'py, PyAny>,
    what: &str,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    let array = obj.extract::<PyReadonlyArray1<'py, T>>().map_err(|_| {
        let given = described(obj);
        invalid_argument(format_args!("{what} come as a one-dimensional array, not {given}"))
    })?;
    if !array.is_contiguous() {
        return Err(invalid_argument(format_args!(
            "{what} come as a contiguous array; use numpy.ascontiguousarray"
        )));
    }
    Ok(array)
}

/// A description of a value given instead of an array. Of an array it names type and shape.
fn described(obj: Borrowed<'_, '_, PyAny>) -> String {
    match obj.cast::<PyUntypedArray>() {
        Ok(array) => format!("one of {} with shape {:?}", array.dtype(), array.shape()),
        Err(_) => format!("{} {}", obj.get_type(), &*obj),
    }
}

/// A size that fits 32 bits.
pub(crate) fn size(obj: &Bound<'_, PyAny>) -> PyResult<u32> {
    obj.extract().map_err(|_| {
        invalid_argument(format_args!("expected an int from 0 to {}, not {obj}", u32::MAX))
    })
}

/// The number of a client.
pub(crate) fn client(obj: &Bound<'_, PyAny>) -> PyResult<u16> {
    let number = size(obj)?;
    u16::try_from(number).ok().filter(|&number| number < BlockManager::MAX_CLIENTS).ok_or_else(
        || {
            invalid_argument(format_args!(
                "client {number}: numbers lie below {}; let several clients share one",
                BlockManager::MAX_CLIENTS
            ))
        },
    )
}

/// A sequence of [`size`]s, or none.
pub(crate) fn optional_sizes(obj: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u32>>> {
    if obj.is_none() {
        return Ok(None);
    }
    obj.try_iter()?.map(|item| size(&item?)).collect::<PyResult<_>>().map(Some)
}

/// [`size`], or none.
pub(crate) fn optional_size(obj: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    if obj.is_none() { Ok(None) } else { size(obj).map(Some) }
}

impl FromPyObject<'_, '_> for Handle {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        obj.extract().map(Self).map_err(|_| {
            invalid_argument(format_args!("expected the handle of a request, not {}", &*obj))
        })
    }
}
