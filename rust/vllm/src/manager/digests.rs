//! A request's block hashes, read as they appear.

use hybrid_blocks::Digest;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::blocks::key;
use crate::request::RequestView;

/// Brings `digests` up to the request's list. Only new ones are read: a digest names all tokens
/// before it, so one that agrees vouches for those before it. What the hasher handed over is
/// checked in the same way.
pub(super) fn update(digests: &mut Vec<Digest>, request: &RequestView<'_, '_>) -> PyResult<()> {
    if digests.is_empty()
        && let Some(state) = request.state()?
    {
        *digests = state.get().take_digests()?;
    }
    update_from(digests, &request.block_hashes()?)
}

fn update_from(digests: &mut Vec<Digest>, hashes: &Bound<'_, PyAny>) -> PyResult<()> {
    let hashes = match hashes.cast::<PyList>() {
        Ok(hashes) => hashes.clone(),
        Err(_) => PyList::new(hashes.py(), hashes.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
    };
    let shared = digests.len().min(hashes.len());
    let agrees = match shared.checked_sub(1) {
        None => true,
        Some(last) => digest(&hashes, last)? == digests[last],
    };
    digests.truncate(if agrees { shared } else { 0 });
    digests.reserve(hashes.len() - digests.len());
    for index in digests.len()..hashes.len() {
        digests.push(digest(&hashes, index)?);
    }
    Ok(())
}

fn digest(list: &Bound<'_, PyList>, index: usize) -> PyResult<Digest> {
    let item = list.get_item(index)?;
    Ok(key::new(item.cast::<PyBytes>()?.as_bytes(), 0)?.digest)
}
