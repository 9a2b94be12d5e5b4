//! Handles and counts as Python gives them: one at a time, or as numpy arrays that are not copied.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::error::invalid_argument;

/// A request handle.
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) u64);

/// A one-dimensional contiguous int64 array of request handles.
pub(crate) struct Handles<'py>(PyReadonlyArray1<'py, i64>);

/// A one-dimensional contiguous int32 array of counts, none of them negative.
pub(crate) struct Counts<'py>(PyReadonlyArray1<'py, i32>);

/// A one-dimensional contiguous int32 array of block ids, none of them negative.
pub(crate) struct BlockIds<'py>(PyReadonlyArray1<'py, i32>);

/// A one-dimensional contiguous int32 array of token ids.
pub(crate) struct TokenArray<'py>(PyReadonlyArray1<'py, i32>);

impl Handles<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<&[u64]> {
        Ok(bytemuck::cast_slice(self.0.as_slice()?))
    }
}

impl Counts<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<&[u32]> {
        let values = self.0.as_slice()?;
        match values.iter().find(|&&value| value < 0) {
            Some(value) => Err(invalid_argument(format_args!("a count is 0 or more, not {value}"))),
            None => Ok(bytemuck::cast_slice(values)),
        }
    }
}

/// Digests in the rows of a contiguous uint8 array.
pub(crate) struct Digests<'py>(PyReadonlyArray2<'py, u8>);

impl Digests<'_> {
    /// Their bytes, one digest after the other.
    pub(crate) fn as_slice(&self, digest_size: usize) -> PyResult<&[u8]> {
        let shape = self.0.shape();
        if shape[1] != digest_size {
            return Err(invalid_argument(format_args!(
                "digests (uint8) have shape [num_blocks, {digest_size}], not {shape:?}"
            )));
        }
        self.0.as_slice().map_err(|_| {
            invalid_argument("digests come as a contiguous array; use numpy.ascontiguousarray")
        })
    }
}

impl<'py> FromPyObject<'_, 'py> for Digests<'py> {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        obj.extract().map(Self).map_err(|_| {
            let kind = obj.get_type();
            invalid_argument(format_args!(
                "digests (uint8) come as an array [num_blocks, digest_size], not {kind} {}",
                &*obj
            ))
        })
    }
}

impl BlockIds<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<&[u32]> {
        let values = self.0.as_slice()?;
        match values.iter().find(|&&value| value < 0) {
            Some(value) => Err(invalid_argument(format_args!("a block id is not {value}"))),
            None => Ok(bytemuck::cast_slice(values)),
        }
    }
}

impl TokenArray<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<&[i32]> {
        Ok(self.0.as_slice()?)
    }
}

fn array<'py, T: numpy::Element>(
    obj: Borrowed<'_, 'py, PyAny>,
    what: &str,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    let array = obj.extract::<PyReadonlyArray1<'py, T>>().map_err(|_| {
        let kind = obj.get_type();
        invalid_argument(format_args!(
            "{what} come as a one-dimensional array, not {kind} {}",
            &*obj
        ))
    })?;
    if !array.is_contiguous() {
        return Err(invalid_argument(format_args!(
            "{what} come as a contiguous array; use numpy.ascontiguousarray"
        )));
    }
    Ok(array)
}

impl<'py> FromPyObject<'_, 'py> for Handles<'py> {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        array(obj, "handles (int64)").map(Self)
    }
}

impl<'py> FromPyObject<'_, 'py> for Counts<'py> {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        array(obj, "counts (int32)").map(Self)
    }
}

impl<'py> FromPyObject<'_, 'py> for BlockIds<'py> {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        array(obj, "block ids (int32)").map(Self)
    }
}

impl<'py> FromPyObject<'_, 'py> for TokenArray<'py> {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        array(obj, "tokens (int32)").map(Self)
    }
}

/// A size that fits 32 bits.
pub(crate) fn size(obj: &Bound<'_, PyAny>) -> PyResult<u32> {
    obj.extract().map_err(|_| {
        invalid_argument(format_args!("expected an int from 0 to {}, not {obj}", u32::MAX))
    })
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
