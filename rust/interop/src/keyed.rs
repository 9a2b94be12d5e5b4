//! Keyed digests of block hashes, as the file of recorded traffic has them.

use hybrid_blocks::hash::{KEY_BYTES, TEXT_BYTES, push_keyed_digest};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::error::invalid_argument;

/// A JSON list of the digests of `hashes`.
///
/// # Errors
/// `InvalidArgumentError` for a key of another size than 16 bytes, `TypeError` for a hash that is not bytes.
#[pyfunction]
pub fn keyed_digests<'py>(
    py: Python<'py>,
    key: &[u8],
    hashes: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyBytes>> {
    let key: [u8; KEY_BYTES] = key.try_into().map_err(|_| {
        invalid_argument(format!("a key has {KEY_BYTES} bytes, and this one {}", key.len()))
    })?;
    let mut text = Vec::with_capacity(hashes.len() * (TEXT_BYTES + 3) + 2);
    text.push(b'[');
    for hash in hashes {
        if text.len() > 1 {
            text.push(b',');
        }
        text.push(b'"');
        push_keyed_digest(&mut text, key, hash.cast::<PyBytes>()?.as_bytes());
        text.push(b'"');
    }
    text.push(b']');
    Ok(PyBytes::new(py, &text))
}
