//! Changes of the prefix cache as tuples, for Python to describe them with the request at hand, and
//! what became of blocks.

use hybrid_blocks::{BlockId, CacheEvent, Residency};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::blocks::key;

/// `("stored", group, first_block, end_block, positions)`, `("tail", group, num_tokens)` and
/// `("removed", key)`.
pub(super) fn tuples<'py>(py: Python<'py>, events: &[CacheEvent]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for event in events {
        let tuple = match event {
            CacheEvent::Stored { group, first_block, end_block, positions, .. } => {
                ("stored", group.0, *first_block, *end_block, positions.clone())
                    .into_pyobject(py)?
            }
            CacheEvent::StoredTail { group, num_tokens, .. } => {
                ("tail", group.0, *num_tokens).into_pyobject(py)?
            }
            CacheEvent::Removed(key) => {
                ("removed", PyBytes::new(py, &key::to_bytes(key))).into_pyobject(py)?
            }
            // vLLM's own pool reports a reset.
            _ => continue,
        };
        list.append(tuple)?;
    }
    Ok(list)
}

/// `("allocated", id)`, `("accessed", id)` and `("evicted", id)`.
pub(super) fn residency<'py>(
    py: Python<'py>,
    residency: &[(Residency, BlockId)],
) -> PyResult<Bound<'py, PyList>> {
    let tuples = residency.iter().map(|&(what, block)| {
        let name = match what {
            Residency::Allocated => "allocated",
            Residency::Accessed => "accessed",
            Residency::Evicted => "evicted",
        };
        (name, block.0)
    });
    PyList::new(py, tuples.collect::<Vec<_>>())
}
