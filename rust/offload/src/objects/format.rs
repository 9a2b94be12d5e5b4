//! The content of an object: a header, and the chunk. `docs/reference/offload-files.md` lists every byte.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::key::StoredKey;

const MAGIC: [u8; 8] = *b"HBOBJC01";
/// Bytes before the chunk.
pub(super) const HEADER: usize = NAMED + 4;
/// Magic, name, tokens and bytes; the checksum behind them covers all but the magic, and the chunk.
const NAMED: usize = MAGIC.len() + StoredKey::LEN + 8;

/// An object of a chunk.
pub(super) fn encode(key: StoredKey, num_tokens: u32, chunk: &[u8]) -> Bytes {
    let mut object = BytesMut::with_capacity(HEADER + chunk.len());
    object.put_slice(&MAGIC);
    object.put_slice(&key.to_bytes());
    object.put_u32_le(num_tokens);
    object.put_u32_le(chunk.len() as u32);
    object.put_u32_le(crc32c::crc32c_append(crc32c::crc32c(&object[MAGIC.len()..]), chunk));
    object.put_slice(chunk);
    object.freeze()
}

/// The chunk of an object, or `None` if the object is not the one of `key`, or is damaged.
pub(super) fn decode(key: StoredKey, object: &[u8]) -> Option<&[u8]> {
    let (header, chunk) = object.split_at_checked(HEADER)?;
    let (named, checksum) = header.split_at(NAMED);
    let name = named.strip_prefix(&MAGIC)?;
    let is_right = name.starts_with(&key.to_bytes())
        && name.ends_with(&(chunk.len() as u32).to_le_bytes())
        && crc32c::crc32c_append(crc32c::crc32c(name), chunk).to_le_bytes() == checksum;
    is_right.then_some(chunk)
}
