//! [`BlockIo`]: the interface of all backends.

use std::fmt::Debug;
use std::fs::File;
use std::io;

/// Fill a buffer from a file.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// File of the transfer.
    pub file: &'a File,
    /// First byte to read.
    pub offset: u64,
    /// Where the bytes go; all of it is filled.
    pub buffer: &'a mut [u8],
}

/// Writes a buffer to a file.
#[derive(Debug)]
pub struct WriteOp<'a> {
    /// File of the transfer.
    pub file: &'a File,
    /// Where the first byte goes.
    pub offset: u64,
    /// Bytes to write.
    pub buffer: &'a [u8],
}

/// Gets the index of a read, its buffer and the result.
pub type OnRead<'a> = dyn FnMut(usize, &mut [u8], io::Result<()>) + 'a;

/// Runs batches of reads and writes. A transfer that ends early is continued; the end of a file within a
/// buffer is [`io::ErrorKind::UnexpectedEof`].
pub trait BlockIo: Debug + Send + Sync {
    /// Reads all operations of a batch. `done` gets each one's index, its buffer and the result while
    /// others are still under way, in any order.
    fn read(&self, ops: &mut [ReadOp<'_>], done: &mut OnRead<'_>);

    /// Writes all operations of a batch. One result an operation, in order. `meanwhile` runs once, on the
    /// calling thread, where possible while writes are under way.
    fn write(&self, ops: &[WriteOp<'_>], meanwhile: &mut dyn FnMut()) -> Vec<io::Result<()>>;

    /// The backend's name, for logs.
    fn name(&self) -> &'static str;
}
