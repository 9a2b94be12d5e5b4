//! [`Value`]: the Python values that extra keys are made of.

use std::sync::Arc;

/// A Python value of one of the built-in types that both encodings can write exactly.
///
/// Pickle writes an object that occurs twice as a reference to its first occurrence, and goes by
/// identity, not by equality. Sharing an [`Arc`] says "the same object"; two `Arc`s of equal
/// content are two objects. CBOR does not look at identity.
///
/// Encoding recurses into tuples, so callers that build values from foreign input bound their
/// depth.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Python's `None` object
    None,
    /// Python's `bool` object
    Bool(bool),
    /// `int` that fits 64 bits
    Int(i64),
    /// Python's `float` object
    Float(f64),
    /// Python's `bytes` object
    Bytes(Arc<[u8]>),
    /// `str` without lone surrogates
    Str(Arc<str>),
    /// Python's `tuple` object
    Tuple(Arc<[Value]>),
}

impl Value {
    /// A new `str` object.
    pub fn str(text: &str) -> Self {
        Self::Str(text.into())
    }

    /// A new `bytes` object.
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.into())
    }

    /// A new `tuple` object.
    pub fn tuple(items: impl IntoIterator<Item = Self>) -> Self {
        Self::Tuple(items.into_iter().collect())
    }
}
