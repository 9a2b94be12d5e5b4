//! Token ids, as Python gives them.

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};

use crate::error::invalid_argument;
use crate::list_ints::ListInts;

/// Copies token ids out of a list or tuple of `int`, or a one-dimensional buffer of int32 or int64.
///
/// A copy, so that what is hashed cannot change while the GIL is released.
///
/// # Errors
/// `InvalidArgumentError` for anything else.
pub fn token_ids(tokens: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if let Ok(list) = tokens.cast::<PyList>() {
        let mut ids = Vec::new();
        return list_ids(list, 0, &mut ids).map(|()| ids);
    }
    if let Ok(tuple) = tokens.cast::<PyTuple>() {
        return tuple_ids(tuple, 0);
    }
    let buffer = PyUntypedBuffer::get(tokens).map_err(|_| {
        let kind = tokens.get_type();
        invalid_argument(format_args!(
            "tokens are a list or tuple of int, or a one-dimensional buffer of int32 or int64, \
             not {kind}"
        ))
    })?;
    if buffer.dimensions() != 1 {
        let shape = buffer.shape();
        return Err(invalid_argument(format_args!(
            "tokens have one dimension, not shape {shape:?}"
        )));
    }
    // An explicit byte order in the format means that the bytes are foreign.
    let native = !matches!(buffer.format().to_bytes(), [b'<' | b'>' | b'!' | b'=', ..]);
    match (buffer.as_typed(), buffer.as_typed()) {
        (Ok(buffer), _) if native => widen::<i32>(tokens.py(), buffer),
        (_, Ok(buffer)) if native => widen::<i64>(tokens.py(), buffer),
        _ => Err(invalid_argument(format_args!(
            "tokens are native int32 or int64, not items of {} bytes and format {:?}",
            buffer.item_size(),
            buffer.format()
        ))),
    }
}

/// Copies the token ids of a list from `start` on into `ids`, in place of what is there.
///
/// # Errors
/// `InvalidArgumentError` for other things than `int`
pub fn list_ids(tokens: &Bound<'_, PyList>, start: usize, ids: &mut Vec<i64>) -> PyResult<()> {
    ids.clear();
    if !ListInts::of(tokens)?.read(start, ids) {
        // Items of a tuple can be borrowed, which saves two calls an item.
        *ids = tuple_ids(&tokens.to_tuple(), start)?;
    }
    Ok(())
}

fn tuple_ids(tokens: &Bound<'_, PyTuple>, start: usize) -> PyResult<Vec<i64>> {
    let mut ids = Vec::with_capacity(tokens.len().saturating_sub(start));
    for (index, item) in tokens.iter_borrowed().enumerate().skip(start) {
        ids.push(token_id(index, &item)?);
    }
    Ok(ids)
}

fn token_id(index: usize, item: &Bound<'_, PyAny>) -> PyResult<i64> {
    // A bool or a numpy scalar is serialized as what it is and would give another digest.
    if !item.is_exact_instance_of::<PyInt>() {
        let kind = item.get_type();
        return Err(invalid_argument(format_args!("token {index} is {item}, {kind}, not an int")));
    }
    item.extract().map_err(|_| {
        invalid_argument(format_args!("token {index} is {item}, which does not fit 64 bits"))
    })
}

fn widen<T: Element + Into<i64>>(py: Python<'_>, buffer: &PyBuffer<T>) -> PyResult<Vec<i64>> {
    Ok(buffer.to_vec(py)?.into_iter().map(Into::into).collect())
}
