//! `hybrid_blocks._core`: the core crate as a Python module. Everything delegates.
#![deny(unsafe_code)]

mod build_info;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::build_info::build_info;
}
