//! `hybrid_blocks._core.offload`: host memory and disk below the device, for an engine's offload manager.

mod disk;
mod errors;
mod host;
mod keys;

/// The Python module.
#[pyo3::pymodule(submodule)]
pub(crate) mod offload {
    #[pymodule_export]
    use super::disk::DiskStore;
    #[pymodule_export]
    use super::host::{HostCache, Lookup};
}
