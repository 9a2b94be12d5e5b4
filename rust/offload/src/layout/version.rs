//! [`LayoutVersion`]: a fingerprint of everything that decides what the bytes of a chunk mean.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::GroupLayout;

/// Changes whenever the order of bytes in a chunk does.
const FORMAT: u32 = 2;

/// The facts that a chunk's content depends on beside the tokens and the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelIdentity<'a> {
    /// The model, such as a name or the digest of its configuration.
    pub name: &'a str,
    /// The revision of its weights.
    pub revision: &'a str,
    /// The element types of weights and cache, such as `bfloat16/fp8`.
    pub dtype: &'a str,
    /// How tokens are hashed, seed included, such as `sha256_cbor`.
    pub hashing: &'a str,
}

/// 128 bits of a SHA-256 over a model's identity, a group's layers and its layout.
///
/// Names of layers and the size of tensor parallelism do not go in: neither changes a byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutVersion([u8; 16]);

impl LayoutVersion {
    /// The version of a group's chunks. `layers` counts the group's layers by their depth in the model,
    /// from 0; `block_size` is in tokens.
    pub fn new(
        model: ModelIdentity<'_>,
        layers: &[u32],
        block_size: u32,
        layout: &GroupLayout,
    ) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(FORMAT.to_le_bytes());
        for text in [model.name, model.revision, model.dtype, model.hashing] {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        hasher.update((layers.len() as u64).to_le_bytes());
        for layer in layers {
            hasher.update(layer.to_le_bytes());
        }
        hasher.update(block_size.to_le_bytes());
        hasher.update([layout.state_format().map_or(0, |format| format as u8)]);
        hasher.update((layout.parts().len() as u64).to_le_bytes());
        for part in layout.parts() {
            hasher.update([part.kind as u8, u8::from(part.is_float32)]);
            hasher.update(part.rows.to_le_bytes());
            hasher.update(part.num_heads.to_le_bytes());
            hasher.update(part.bytes_per_head.to_le_bytes());
        }
        let digest: [u8; 32] = hasher.finalize().into();
        Self(std::array::from_fn(|i| digest[i]))
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl From<[u8; 16]> for LayoutVersion {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for LayoutVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
