//! Errors of the core as exceptions of `hybrid_blocks.errors`, where they are documented.

use std::fmt::Display;

use hybrid_blocks::Error;
use pyo3::prelude::*;

pyo3::import_exception!(hybrid_blocks.errors, HybridBlocksError);
pyo3::import_exception!(hybrid_blocks.errors, InvalidArgumentError);

/// An `InvalidArgumentError` that says `message`.
pub fn invalid_argument(message: impl Display) -> PyErr {
    InvalidArgumentError::new_err(message.to_string())
}

pyo3::import_exception!(hybrid_blocks.errors, BlockError);
pyo3::import_exception!(hybrid_blocks.errors, DuplicateRequestError);
pyo3::import_exception!(hybrid_blocks.errors, IntegrityError);
pyo3::import_exception!(hybrid_blocks.errors, OutOfBlocksError);
pyo3::import_exception!(hybrid_blocks.errors, RequestTooLargeError);
pyo3::import_exception!(hybrid_blocks.errors, UnknownRequestError);

/// The exception that stands for an error of the core.
#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub fn core_error(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::OutOfBlocks { .. } => OutOfBlocksError::new_err(message),
        Error::RequestTooLarge { .. } => RequestTooLargeError::new_err(message),
        Error::UnknownRequest { .. } => UnknownRequestError::new_err(message),
        Error::DuplicateRequest(_) => DuplicateRequestError::new_err(message),
        Error::ForeignBlock { .. } | Error::NotLive { .. } | Error::BlocksInUse { .. } => {
            BlockError::new_err(message)
        }
        _ => InvalidArgumentError::new_err(message),
    }
}

/// A broken promise of the core itself.
pub fn integrity_error(message: String) -> PyErr {
    IntegrityError::new_err(message)
}
