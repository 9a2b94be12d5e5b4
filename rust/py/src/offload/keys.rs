//! Keys as vLLM writes them: a digest and, in the last 4 bytes, high byte first, the group.

use hybrid_blocks::{Digest, GroupId, Key};
use hybrid_blocks_interop::invalid_argument;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bytes of the group.
const GROUP: usize = 4;

/// A key, and how long its digest is.
#[derive(Clone, Copy)]
pub(super) struct OffloadKey {
    pub(super) key: Key,
    pub(super) digest_size: usize,
}

impl FromPyObject<'_, '_> for OffloadKey {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let bytes = obj.cast::<PyBytes>().map_err(|_| refusal(&obj))?;
        let bytes = bytes.as_bytes();
        let (digest, group) = bytes.split_last_chunk::<GROUP>().ok_or_else(|| refusal(&obj))?;
        if !matches!(digest.len(), 16 | 32) {
            return Err(refusal(&obj));
        }
        let digest_size = digest.len();
        let digest = Digest::from_slice(digest).ok_or_else(|| refusal(&obj))?;
        let key = Key { digest, group: GroupId(u32::from_be_bytes(*group)) };
        Ok(Self { key, digest_size })
    }
}

fn refusal(obj: &Bound<'_, PyAny>) -> PyErr {
    invalid_argument(format_args!(
        "a key is a digest of 16 or 32 bytes and a group of 4 bytes, not {obj}"
    ))
}

/// The bytes of a key.
pub(super) fn to_bytes<'py>(py: Python<'py>, key: &Key, digest_size: usize) -> Bound<'py, PyBytes> {
    let mut bytes = key.digest.as_bytes()[..digest_size].to_vec();
    bytes.extend_from_slice(&key.group.0.to_be_bytes());
    PyBytes::new(py, &bytes)
}

/// Refuses keys of groups that there are not.
pub(super) fn check_groups(keys: &[OffloadKey], num_groups: usize) -> PyResult<()> {
    match keys.iter().find(|it| it.key.group.index() >= num_groups) {
        None => Ok(()),
        Some(key) => Err(invalid_argument(format_args!(
            "a key of group {}; there are {num_groups} groups",
            key.key.group
        ))),
    }
}

/// Keys and the tokens that each stands for.
pub(super) fn paired(keys: &[OffloadKey], tokens: &[u32]) -> PyResult<Vec<(Key, u32)>> {
    if keys.len() != tokens.len() {
        return Err(invalid_argument(format_args!(
            "{} keys with {} token counts; give one count a key",
            keys.len(),
            tokens.len()
        )));
    }
    Ok(keys.iter().map(|it| it.key).zip(tokens.iter().copied()).collect())
}

pub(super) fn names(keys: &[OffloadKey]) -> Vec<Key> {
    keys.iter().map(|it| it.key).collect()
}
