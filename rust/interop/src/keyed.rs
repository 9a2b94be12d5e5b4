//! Keyed digests of block hashes, as files of recorded traffic have them.

use hybrid_blocks::hash::{Hashes, KEY_BYTES, KeyedDigests};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::invalid_argument;

/// The digests of one file; its key is never shown.
#[pyclass(name = "KeyedDigests", module = "hybrid_blocks._core", frozen)]
pub struct PyKeyedDigests(KeyedDigests);

#[pymethods]
impl PyKeyedDigests {
    #[new]
    fn new(key: &[u8]) -> PyResult<Self> {
        Ok(Self(KeyedDigests::new(key_of(key)?)))
    }

    /// The digests one behind another.
    fn text(&self, hashes: &Bound<'_, PyAny>) -> PyResult<String> {
        let (mut waiting, mut text) = (Hashes::default(), Vec::new());
        for hash in hashes.try_iter()? {
            self.0.push(hash?.cast::<PyBytes>()?.as_bytes(), &mut waiting, &mut text);
        }
        self.0.finish(&mut waiting, &mut text);
        String::from_utf8(text).map_err(invalid_argument)
    }
}

/// A key of the right size.
pub(crate) fn key_of(key: &[u8]) -> PyResult<[u8; KEY_BYTES]> {
    key.try_into().map_err(|_| {
        invalid_argument(format!("a key has {KEY_BYTES} bytes, and this one {}", key.len()))
    })
}
