//! Errors of the offload crate as exceptions.

use hybrid_blocks_interop::{HybridBlocksError, core_error, invalid_argument};
use hybrid_blocks_offload::Error;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// `OSError` for a refusal of the operating system, else one of `hybrid_blocks.errors`.
pub(super) fn offload_error(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Store(error) => core_error(error),
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, message)),
            None => PyOSError::new_err(message),
        },
        Error::InUse { .. } | Error::NoLocks { .. } => HybridBlocksError::new_err(message),
        _ => invalid_argument(message),
    }
}
