//! Code that the bindings share: errors, the guard against panics, token ids, hints, and block
//! hashing.
#![deny(unsafe_code)]

mod arguments;
mod error;
mod extra_keys;
mod guarded;
mod hash;
mod list_ints;
mod record;
mod tokens;

pub use arguments::{count, optional_hint};
pub use error::{
    BlockError, DuplicateRequestError, HybridBlocksError, IntegrityError, InvalidArgumentError,
    OutOfBlocksError, RequestTooLargeError, UnknownRequestError, core_error, integrity_error,
    invalid_argument,
};
pub use guarded::{Guarded, caught};
pub use hash::{PyBlockHasher, PyHashChain};
pub use list_ints::ListInts;
pub use record::PyRecordLines;
pub use tokens::{list_ids, token_ids};
