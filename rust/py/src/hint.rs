//! What clients say of their requests, as arguments.

use hybrid_blocks::{BlockManager, Hint};
use pyo3::prelude::*;

use crate::batch::size;
use hybrid_blocks_interop::invalid_argument;

/// A hint by its name, or none.
pub(crate) fn optional_hint(obj: &Bound<'_, PyAny>) -> PyResult<Option<Hint>> {
    if obj.is_none() {
        return Ok(None);
    }
    let name = obj.extract::<&str>().unwrap_or_default();
    match Hint::ALL.into_iter().find(|hint| hint.name() == name) {
        Some(hint) => Ok(Some(hint)),
        None => Err(invalid_argument(format_args!(
            "hint is None or one of {:?}, not {obj}",
            Hint::ALL.map(Hint::name)
        ))),
    }
}

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
