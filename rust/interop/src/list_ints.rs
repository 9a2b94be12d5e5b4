//! [`ListInts`]: the integers of a list, read where they lie.
//!
//! Python's stable interface takes two calls for each item, five times what reading the objects takes.
//! How they are laid out is no part of that interface. It is compared once with what the interface
//! says of integers of all sizes in a list; where anything differs, nothing is read here.
//!
//! This is the crate's only module with unsafe code. It reads objects that a list owns. The list
//! cannot change meanwhile: the thread holds the GIL and runs no Python code. Each call looks the
//! items up again, so the list may change between calls.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ops::Range;
use std::{ptr, slice};

use hybrid_blocks::hash::TokenRow;
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

/// An int, as `CPython` lays it out: its sign and number of digits, and the digits, with room for
/// at least one.
#[repr(C)]
struct IntObject {
    base: ffi::PyObject,
    size: usize,
    first_digit: u32,
}

/// Integers of one digit, of 30 bits. Python may mark those below; it keeps one object of each.
const ONE_DIGIT: Range<i64> = 257..1 << 30;
const SOME_ONE_DIGIT: i64 = 1 << 20;

/// The `size` of these integers.
#[derive(Clone, Copy, PartialEq)]
struct OneDigit(usize);

/// The integers of a list.
pub struct ListInts<'a, 'py> {
    list: &'a Bound<'py, PyList>,
    /// `None` where objects are laid out in another way.
    one_digit: Option<OneDigit>,
}

impl<'a, 'py> ListInts<'a, 'py> {
    /// Returns the integers of this list.
    ///
    /// # Errors
    /// Python's, such as `MemoryError`
    pub fn of(list: &'a Bound<'py, PyList>) -> PyResult<Self> {
        static LAYOUT: PyOnceLock<Option<OneDigit>> = PyOnceLock::new();
        let py = list.py();
        Ok(Self { list, one_digit: *LAYOUT.get_or_try_init(py, || one_digit(py))? })
    }

    /// Puts the integers from `start` on at the end of `ints`, and returns whether it did: not where
    /// an item is anything but an int of 64 bits, nor where the objects are laid out in another way.
    pub(crate) fn read(&self, start: usize, ints: &mut Vec<i64>) -> bool {
        let Some(one_digit) = self.one_digit else { return false };
        let before = ints.len();
        let mut are_ints = true;
        // SAFETY: the layout was compared, and no Python code runs before all items are read.
        let items = unsafe { items(self.list, start) };
        ints.extend(items.iter().map(|&item| {
            // SAFETY: the list owns the item.
            let int = unsafe { int(item, one_digit) };
            are_ints &= int.is_some();
            int.unwrap_or_default()
        }));
        if !are_ints {
            ints.truncate(before);
        }
        are_ints
    }
}

impl TokenRow for ListInts<'_, '_> {
    fn len(&self) -> usize {
        self.list.len()
    }

    fn get(&self, index: usize) -> Option<i64> {
        let item = self.list.get_item(index).ok()?;
        // SAFETY: the list owns the item.
        item.is_exact_instance_of::<PyInt>().then(|| unsafe { as_i64(item.as_ptr()) })?
    }

    fn common_prefix(&self, start: usize, known: &[i32]) -> usize {
        let Some(one_digit) = self.one_digit else {
            let equals = |(index, known): (usize, &i32)| self.get(index) == Some((*known).into());
            return (start..).zip(known).take_while(|&pair| equals(pair)).count();
        };
        // SAFETY: the layout was compared, and no Python code runs before the items are read.
        unsafe { common_prefix(items(self.list, start), known, one_digit) }
    }
}

/// How many items are the `known` integers. A function of its own, so that its loop is compiled alike wherever it
/// is called from.
///
/// # Safety
/// The items are owned while they are read. Ints are laid out as [`IntObject`].
#[inline(never)]
unsafe fn common_prefix(items: &[*mut ffi::PyObject], known: &[i32], one_digit: OneDigit) -> usize {
    // SAFETY: by what the caller says.
    let equals =
        |(&item, &known): (&_, &i32)| unsafe { int(item, one_digit) == Some(known.into()) };
    items.iter().zip(known).take_while(|&pair| equals(pair)).count()
}

/// The items from `start` on.
///
/// # Safety
/// Lists are laid out as [`ListObject`], and this one does not change as long as items are read.
unsafe fn items<'a>(list: &'a Bound<'_, PyList>, start: usize) -> &'a [*mut ffi::PyObject] {
    if list.is_empty() {
        return &[];
    }
    // SAFETY: by what the caller says; a list that is not empty has items.
    let items =
        unsafe { slice::from_raw_parts((*list.as_ptr().cast::<ListObject>()).items, list.len()) };
    items.get(start..).unwrap_or_default()
}

/// The value of an item that is an int of 64 bits. No Python code runs.
///
/// # Safety
/// `item` is owned while it is read. Ints are laid out as [`IntObject`].
#[inline]
unsafe fn int(item: *mut ffi::PyObject, one_digit: OneDigit) -> Option<i64> {
    // SAFETY: by what the caller says. An object whose type is exactly int is laid out as one.
    unsafe {
        if ffi::Py_TYPE(item) != &raw mut ffi::PyLong_Type {
            return None;
        }
        let int = item.cast::<IntObject>();
        if (*int).size == one_digit.0 {
            return Some((*int).first_digit.into());
        }
        as_i64(item)
    }
}

/// # Safety
/// `int` is an int and owned while it is read.
#[cold]
unsafe fn as_i64(int: *mut ffi::PyObject) -> Option<i64> {
    let mut overflow = 0;
    // SAFETY: by what the caller says. Of an int, it raises nothing.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(int, &raw mut overflow) };
    (overflow == 0).then_some(value)
}

/// Compares the layout; `None` where it is not the expected one.
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
    let items = unsafe { items(&list, 0) };
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
