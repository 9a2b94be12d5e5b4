//! Reads and writes of whole blocks, many at a time.
//!
//! | backend | how | where |
//! |---|---|---|
//! | [`Ring`] | `io_uring`: one thread keeps many operations in flight | Linux, where the kernel allows it |
//! | [`Threads`] | `pread` and `pwrite` on several threads | everywhere else |
//!
//! Both end only when every operation of the batch has. So buffers are borrowed, never given away.

mod aligned;
mod backend;
mod open;
#[cfg(target_os = "linux")]
mod ring;
mod threads;

pub use aligned::{AlignedBuffer, PAGE, is_aligned};
pub use backend::{BlockIo, OnRead, ReadOp, WriteOp, best_backend};
pub use open::{Mode, open};
#[cfg(target_os = "linux")]
pub use ring::Ring;
pub use threads::Threads;
