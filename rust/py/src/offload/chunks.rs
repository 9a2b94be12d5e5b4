//! Chunks as arrays of bytes beside their keys, as every tier's store takes and fills them.

use hybrid_blocks::Key;
use hybrid_blocks_interop::invalid_argument;
use hybrid_blocks_offload::plan::{Previous, Tier};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use super::keys::{OffloadKey, names, paired};

/// Each key with its tokens and its chunk.
pub(super) fn to_store<'a>(
    keys: &[OffloadKey],
    tokens: &[u32],
    chunks: &'a [PyReadonlyArray1<'_, u8>],
) -> PyResult<Vec<(Key, u32, &'a [u8])>> {
    same_len(keys.len(), chunks.len())?;
    let chunks = chunks.iter().map(|it| Ok(it.as_slice()?)).collect::<PyResult<_>>()?;
    with_chunks(keys, tokens, chunks)
}

/// The same, for as many chunks as keys.
pub(super) fn with_chunks<'a>(
    keys: &[OffloadKey],
    tokens: &[u32],
    chunks: Vec<&'a [u8]>,
) -> PyResult<Vec<(Key, u32, &'a [u8])>> {
    let named = paired(keys, tokens)?;
    Ok(named.into_iter().zip(chunks).map(|((key, tokens), chunk)| (key, tokens, chunk)).collect())
}

/// The buffers to load into, one a key.
pub(super) fn to_fill<'a>(
    num_keys: usize,
    chunks: &'a mut [PyReadwriteArray1<'_, u8>],
) -> PyResult<Vec<&'a mut [u8]>> {
    same_len(num_keys, chunks.len())?;
    chunks.iter_mut().map(|it| Ok(it.as_slice_mut()?)).collect()
}

/// Whether a tier holds each key.
pub(super) fn held(tier: &impl Tier, keys: &[OffloadKey]) -> Vec<bool> {
    names(keys).iter().map(|key| tier.find(key, Previous::default()).is_some()).collect()
}

/// Refuses chunks that are not one a key.
fn same_len(num_keys: usize, num_chunks: usize) -> PyResult<()> {
    if num_keys == num_chunks {
        return Ok(());
    }
    Err(invalid_argument(format_args!("{num_keys} keys with {num_chunks} chunks of bytes")))
}
