//! [`StoredKey`]: the name of a chunk outside of one process.

use std::collections::BTreeSet;
use std::fmt;

use hybrid_blocks::Key;
use sha2::{Digest as _, Sha256};

use crate::layout::LayoutVersion;

/// A key and the layout of its group. It stays the same over restarts, sizes of tensor parallelism and
/// names of layers.
///
/// Printed, it is the name of an object: layout, group and digest in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// Digest of all tokens up to the chunk's end, and group.
    pub key: Key,
    /// The meaning of the chunk's bytes.
    pub layout: LayoutVersion,
}

impl StoredKey {
    /// Bytes of an encoded key.
    pub const LEN: usize = 52;

    /// Digest, group as 4 bytes, low byte first, and layout.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        write_key(&self.key, &mut bytes);
        bytes[36..].copy_from_slice(self.layout.as_bytes());
        bytes
    }
}

impl fmt::Display for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}/", self.layout, self.key.group)?;
        self.key.digest.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Writes digest and group, low byte first, to the first 36 bytes.
pub(crate) fn write_key(key: &Key, out: &mut [u8]) {
    out[..32].copy_from_slice(key.digest.as_bytes());
    out[32..36].copy_from_slice(&key.group.0.to_le_bytes());
}

/// The layouts of all groups of a model. Files of one namespace can be read by every engine that has
/// the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    layouts: Vec<LayoutVersion>,
}

impl Namespace {
    /// A namespace of groups with these layouts, by group number.
    pub fn new(layouts: Vec<LayoutVersion>) -> Self {
        Self { layouts }
    }

    /// A key of this namespace as it is stored, or `None` if there is no such group.
    pub fn stored(&self, key: Key) -> Option<StoredKey> {
        let layout = *self.layouts.get(key.group.index())?;
        Some(StoredKey { key, layout })
    }

    /// The layouts, each once.
    pub(crate) fn layouts(&self) -> BTreeSet<LayoutVersion> {
        self.layouts.iter().copied().collect()
    }

    /// A SHA-256 over all layouts in order.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for layout in &self.layouts {
            hasher.update(layout.as_bytes());
        }
        hasher.finalize().into()
    }
}
