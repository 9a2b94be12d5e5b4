//! Our own rules for checkpoints, said once: where a request leaves them, and what it remembers of those that it
//! resumes from and leaves.
//!
//! ```text
//! resumed, trail <- checkpoints
//! ```

mod checkpoints;
mod resumed;
mod trail;

pub(crate) use checkpoints::{Checkpoints, Reason};
pub(crate) use resumed::Resumed;
pub(crate) use trail::Trail;
