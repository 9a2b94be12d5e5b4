//! [`list_ints`]: the integers of a list, read where they lie.
//!
//! Python's stable interface takes two calls for each item, five times what reading the objects takes.
//! How they are laid out is no part of that interface. It is compared once with what the interface
//! says of integers of all sizes in a list; where anything differs, nothing is read here.
//!
//! This is the crate's only module with unsafe code. It reads objects that a list owns. The list
//! cannot change meanwhile: the thread holds the GIL and runs no Python code.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ops::Range;
use std::{ptr, slice};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList, PyType};

/// A list, as `CPython` lays it out.
#[repr(C)]
struct ListObject {
    base: ffi::PyVarObject,
    items: *const *mut ffi::PyObject,
    allocated: isize,
}

/// An int, as `CPython` lays it out: its sign and number of digits, and the digits, of which there is
/// room for one at least.
#[repr(C)]
struct IntObject {
    base: ffi::PyObject,
    size: usize,
    first_digit: u32,
}

/// Integers of one digit, of 30 bits. Python may mark those below, of which it keeps one each.
const ONE_DIGIT: Range<i64> = 257..1 << 30;
const SOME_ONE_DIGIT: i64 = 1 << 20;

/// What these integers have as their `size`.
#[derive(Clone, Copy, PartialEq)]
struct OneDigit(usize);

/// Puts the integers of a list at the end of `ints`, and returns whether it did: not where an item is
/// anything but an int of 64 bits, nor where the objects are laid out in another way.
///
/// # Errors
/// Python's, such as `MemoryError`
pub(crate) fn list_ints(list: &Bound<'_, PyList>, ints: &mut Vec<i64>) -> PyResult<bool> {
    static LAYOUT: PyOnceLock<Option<OneDigit>> = PyOnceLock::new();
    let py = list.py();
    let one_digit = *LAYOUT.get_or_try_init(py, || one_digit(py))?;
    let Some(one_digit) = one_digit else { return Ok(false) };
    let before = ints.len();
    let are_ints = read(list, one_digit, ints);
    if !are_ints {
        ints.truncate(before);
    }
    Ok(are_ints)
}

fn read(list: &Bound<'_, PyList>, one_digit: OneDigit, ints: &mut Vec<i64>) -> bool {
    let int_type = &raw mut ffi::PyLong_Type;
    let mut are_ints = true;
    // SAFETY: the layout was compared, and the list does not change before it is read to its end.
    let items = unsafe { items(list) };
    ints.extend(items.iter().map(|&item| {
        // The error of an item may have run Python code, and so have changed the list.
        if !are_ints {
            return 0;
        }
        // SAFETY: the list owns the item. An object whose type is exactly int is laid out as one.
        unsafe {
            if ffi::Py_TYPE(item) != int_type {
                are_ints = false;
                return 0;
            }
            let int = item.cast::<IntObject>();
            if (*int).size == one_digit.0 {
                return i64::from((*int).first_digit);
            }
            as_i64(list.py(), item).unwrap_or_else(|| {
                are_ints = false;
                0
            })
        }
    }));
    are_ints
}

/// # Safety
/// Lists are laid out as [`ListObject`], and this one does not change as long as items are read.
unsafe fn items<'a>(list: &'a Bound<'_, PyList>) -> &'a [*mut ffi::PyObject] {
    if list.is_empty() {
        return &[];
    }
    // SAFETY: by what the caller says; a list that is not empty has items.
    unsafe { slice::from_raw_parts((*list.as_ptr().cast::<ListObject>()).items, list.len()) }
}

/// # Safety
/// `int` is an int.
#[cold]
unsafe fn as_i64(py: Python<'_>, int: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: by what the caller says.
    let value = unsafe { ffi::PyLong_AsLongLong(int) };
    (value != -1 || PyErr::take(py).is_none()).then_some(value)
}

/// Compare the layout; `None` where it is not the expected one.
fn one_digit(py: Python<'_>) -> PyResult<Option<OneDigit>> {
    let sizes = |of: Bound<'_, PyType>| -> PyResult<[usize; 2]> {
        Ok([of.getattr("__basicsize__")?.extract()?, of.getattr("__itemsize__")?.extract()?])
    };
    let is_large_enough = sizes(py.get_type::<PyList>())? == [size_of::<ListObject>(), 0]
        && sizes(py.get_type::<PyInt>())? == [offset_of!(IntObject, first_digit), size_of::<u32>()];
    if !is_large_enough {
        return Ok(None);
    }
    let near = |power: i64| [power - 1, power, power + 1].map(|value| [value, -value]);
    let values: Vec<i64> = (0..62).flat_map(|bit| near(1 << bit)).flatten().collect();
    let list = PyList::new(py, &values)?;
    // SAFETY: both types are as large in Python, and nobody else has the list.
    let items = unsafe { items(&list) };
    let mut found = Vec::with_capacity(values.len());
    for ((index, &value), &item) in values.iter().enumerate().zip(items) {
        if !ptr::eq(item, list.get_item(index)?.as_ptr()) {
            return Ok(None);
        }
        // SAFETY: this is the list's item, and so an int.
        unsafe {
            let int = item.cast::<IntObject>();
            found.push((value, OneDigit((*int).size), (*int).first_digit));
        }
    }
    let some_one = found.iter().find(|(value, ..)| *value == SOME_ONE_DIGIT);
    Ok(some_one.map(|&(_, one_digit, _)| one_digit).filter(|&one_digit| {
        found.iter().all(|&(value, size, digit)| {
            if size == one_digit { i64::from(digit) == value } else { !ONE_DIGIT.contains(&value) }
        })
    }))
}
