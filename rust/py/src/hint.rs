//! Hints of clients on their requests, as arguments.

use hybrid_blocks::BlockManager;
use hybrid_blocks_interop::invalid_argument;
use pyo3::prelude::*;

use crate::batch::size;

/// The number of a client.
pub(crate) fn client(obj: &Bound<'_, PyAny>) -> PyResult<u16> {
    let number = size(obj)?;
    u16::try_from(number).ok().filter(|&number| number < BlockManager::MAX_CLIENTS).ok_or_else(
        || {
            invalid_argument(format_args!(
                "client {number}: numbers lie below {}; let several clients share one",
                BlockManager::MAX_CLIENTS
            ))
        },
    )
}
