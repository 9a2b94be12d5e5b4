//! vLLM's `BlockHashWithGroupId`: a block hash and the group as four big-endian bytes.

use hybrid_blocks::{Digest, GroupId, Key};
use pyo3::PyResult;

use hybrid_blocks_interop::invalid_argument;

/// Groups above this have no room in the prefix index.
const MAX_GROUP: u32 = u16::MAX as u32 - 1;

/// The key of a hash and a group.
///
/// Hashes of 32 and 16 bytes are digests as the core knows them. Only tests make up shorter ones;
/// their length in the last byte tells them apart.
pub(crate) fn new(hash: &[u8], group: u32) -> PyResult<Key> {
    let digest = match hash.len() {
        32 | 16 => Digest::from_slice(hash),
        len @ 1..16 => {
            let mut storage = [0; Digest::MAX_LEN];
            storage[..len].copy_from_slice(hash);
            storage[Digest::MAX_LEN - 1] = len as u8;
            Some(storage.into())
        }
        _ => None,
    };
    match digest {
        Some(digest) if group <= MAX_GROUP => Ok(Key { digest, group: GroupId(group) }),
        Some(_) => Err(invalid_argument(format!("group {group} is above {MAX_GROUP}"))),
        None => Err(invalid_argument(format!(
            "a block hash has 32, 16 or fewer bytes, not {}; use sha256 or xxhash for \
             prefix caching",
            hash.len()
        ))),
    }
}

/// The key that vLLM spells as `bytes`.
pub(super) fn parse(bytes: &[u8]) -> PyResult<Key> {
    match bytes.split_last_chunk() {
        Some((hash, group)) => new(hash, u32::from_be_bytes(*group)),
        None => Err(invalid_argument(format!(
            "a key is a block hash and four bytes of group, not {} bytes",
            bytes.len()
        ))),
    }
}

/// A key as vLLM spells it.
pub(crate) fn to_bytes(key: &Key) -> Vec<u8> {
    let digest = key.digest.as_bytes();
    let (short, rest) = digest.split_at(16);
    let hash = match rest {
        [0, .., 0] if rest.iter().all(|&byte| byte == 0) => short,
        [zeros @ .., len @ 1..16] if zeros.iter().all(|&byte| byte == 0) => {
            &short[..usize::from(*len)]
        }
        _ => &digest[..],
    };
    [hash, &key.group.0.to_be_bytes()].concat()
}
