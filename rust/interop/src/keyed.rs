//! Keyed digests of block hashes, as files of recorded traffic have them.

use hybrid_blocks::hash::{KEY_BYTES, KeyedDigests};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::error::invalid_argument;

/// The digests of one file; its key is never shown.
#[pyclass(name = "KeyedDigests", module = "hybrid_blocks._core", frozen)]
pub struct PyKeyedDigests(KeyedDigests);

#[pymethods]
impl PyKeyedDigests {
    #[new]
    fn new(key: &[u8]) -> PyResult<Self> {
        let key: [u8; KEY_BYTES] = key.try_into().map_err(|_| {
            invalid_argument(format!("a key has {KEY_BYTES} bytes, and this one {}", key.len()))
        })?;
        Ok(Self(KeyedDigests::new(key)))
    }

    /// The digests one behind another. The GIL is held only to read the hashes.
    fn text(&self, py: Python<'_>, hashes: &Bound<'_, PyList>) -> PyResult<String> {
        let folded = hashes
            .iter()
            .map(|hash| Ok(KeyedDigests::fold(hash.cast::<PyBytes>()?.as_bytes())))
            .collect::<PyResult<Vec<_>>>()?;
        Ok(py.detach(|| self.0.text(folded)))
    }
}
