//! Code that the bindings share: errors, the guard against panics, token ids, hints, and block
//! hashing.
#![deny(unsafe_code)]

mod count;
mod error;
mod extra_keys;
mod guarded;
mod hash;
mod hint;
mod list_ints;
mod record;
mod tokens;

pub use count::count;
pub use error::{
    BlockError, DuplicateRequestError, HybridBlocksError, IntegrityError, InvalidArgumentError,
    OutOfBlocksError, RequestTooLargeError, UnknownRequestError, core_error, integrity_error,
    invalid_argument,
};
pub use guarded::{Guarded, caught};
pub use hash::{PyBlockHasher, PyHashChain};
pub use hint::optional_hint;
pub use list_ints::ListInts;
pub use record::PyRecordLines;
pub use tokens::{list_ids, token_ids};
