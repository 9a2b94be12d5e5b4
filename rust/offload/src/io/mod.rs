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
pub use backend::{BlockIo, OnRead, ReadOp, WriteOp};
pub use open::{Mode, open};
#[cfg(target_os = "linux")]
pub use ring::Ring;
pub use threads::Threads;

use std::sync::Arc;

/// `io_uring` with up to `depth` operations in flight, or as many threads, at most 16, where the kernel
/// refuses it, as it does in many containers.
pub fn best_backend(depth: u32) -> Arc<dyn BlockIo> {
    #[cfg(target_os = "linux")]
    if let Ok(ring) = Ring::new(depth) {
        return Arc::new(ring);
    }
    Arc::new(Threads::new(depth.clamp(1, 16) as usize))
}
