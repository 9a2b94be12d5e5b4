//! `hybrid_blocks._core.offload`: host memory, disk and objects below the device, for an engine's offload manager.

mod chunk_store;
mod codec;
mod disk;
mod errors;
mod host;
mod keys;
mod objects;
mod region;
mod request_keys;
mod warnings;

/// The Python module.
#[pyo3::pymodule(submodule, gil_used = true)]
pub(crate) mod offload {
    #[pymodule_export]
    use super::chunk_store::ChunkStore;
    #[pymodule_export]
    use super::codec::ChunkCodec;
    #[pymodule_export]
    use super::disk::DiskStore;
    #[pymodule_export]
    use super::host::{HostCache, Lookup};
    #[pymodule_export]
    use super::objects::ObjectStore;
    #[pymodule_export]
    use super::region::ChunkRegion;
    #[pymodule_export]
    use super::request_keys::RequestKeys;
}
