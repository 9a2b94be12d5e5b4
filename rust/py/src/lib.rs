//! `hybrid_blocks._core`: the core crate as a Python module. Everything delegates.
#![deny(unsafe_code)]

mod build_info;
mod count;
mod error;
mod extra_keys;
mod hash;
mod tokens;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::build_info::build_info;
    #[pymodule_export]
    use super::hash::{BlockHasher, HashChain};
}
