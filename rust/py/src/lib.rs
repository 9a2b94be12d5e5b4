//! `hybrid_blocks._core`: the core crate as a Python module. Everything delegates.
#![deny(unsafe_code)]
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod batch;
mod block_manager;
mod build_info;
mod checkpoint_policy;
mod group_kind;
mod group_spec;
#[cfg(feature = "offload")]
mod offload;
mod reports;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
mod _core {
    use hybrid_blocks::Hint;
    use pyo3::types::PyTuple;

    use super::{Bound, PyAnyMethods, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::block_manager::BlockManager;
    #[pymodule_export]
    use super::build_info::build_info;
    #[pymodule_export]
    use super::checkpoint_policy::CheckpointPolicy;
    #[pymodule_export]
    use super::group_kind::GroupKind;
    #[pymodule_export]
    use super::group_spec::GroupSpec;
    #[cfg(feature = "offload")]
    #[pymodule_export]
    use super::offload::offload;
    #[pymodule_export]
    use hybrid_blocks_interop::{PyBlockHasher, PyHashChain, PyRecordLines};
    #[pymodule_export]
    use hybrid_blocks_vllm::vllm;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("SESSION_HINTS", PyTuple::new(module.py(), Hint::ALL.map(Hint::name))?)?;
        // A module without a file can only be imported by its name if it is there already.
        let modules = module.py().import("sys")?.getattr("modules")?;
        let parts: &[&str] =
            if cfg!(feature = "offload") { &["vllm", "offload"] } else { &["vllm"] };
        for name in parts {
            let (full, part) = (format!("hybrid_blocks._core.{name}"), module.getattr(*name)?);
            part.setattr("__name__", &full)?;
            modules.set_item(full, part)?;
        }
        Ok(())
    }
}
