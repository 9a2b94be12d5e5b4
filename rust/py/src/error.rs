//! Errors of the core as exceptions of `hybrid_blocks.errors`, where they are documented.

use std::fmt::Display;

use pyo3::prelude::*;

pyo3::import_exception!(hybrid_blocks.errors, HybridBlocksError);
pyo3::import_exception!(hybrid_blocks.errors, InvalidArgumentError);

/// An `InvalidArgumentError` that says `message`.
pub(crate) fn invalid_argument(message: impl Display) -> PyErr {
    InvalidArgumentError::new_err(message.to_string())
}
