//! [`Ring`]: `io_uring`.
//!
//! This is the crate's only module with unsafe code. The kernel reads and writes the buffers of an
//! operation after the call that submits it. That is sound because `run` borrows them until every
//! submitted operation has completed, and returns on no other way.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use super::{BlockIo, OnRead, ReadOp, Threads, WriteOp};
use crate::lock::lock;

/// The most bytes one operation may have: lengths are 32 bits, and the kernel stops at 2 GiB.
const MOST_BYTES: usize = 1 << 30;

/// Threads that go on once the kernel has broken the ring.
const MOST_THREADS: usize = 16;

/// One submission thread at a time and up to `depth` operations in flight. After an error of the ring itself,
/// threads take over.
pub struct Ring {
    /// Taken for a whole batch, so completions of two batches never mix. `None` after the kernel broke it.
    ring: Mutex<Option<IoUring>>,
    depth: usize,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth).finish_non_exhaustive()
    }
}

/// An operation's memory, and how far it has come.
struct Transfer {
    fd: i32,
    offset: u64,
    address: *mut u8,
    len: usize,
    num_done: usize,
    is_write: bool,
    is_finished: bool,
}

impl Transfer {
    fn new(file: &File, offset: u64, address: *mut u8, len: usize, is_write: bool) -> Self {
        let fd = file.as_raw_fd();
        Self { fd, offset, address, len, num_done: 0, is_write, is_finished: false }
    }

    /// The rest of the operation, for the kernel.
    fn entry(&self, at: usize) -> squeue::Entry {
        let len = (self.len - self.num_done).min(MOST_BYTES) as u32;
        let offset = self.offset + self.num_done as u64;
        let address = self.address.wrapping_add(self.num_done);
        let entry = if self.is_write {
            opcode::Write::new(types::Fd(self.fd), address, len).offset(offset).build()
        } else {
            opcode::Read::new(types::Fd(self.fd), address, len).offset(offset).build()
        };
        entry.user_data(at as u64)
    }

    /// Takes a completion in. `None`: the rest must be submitted.
    fn advance(&mut self, result: i32) -> Option<io::Result<()>> {
        match result {
            0 if self.num_done < self.len => Some(Err(if self.is_write {
                io::ErrorKind::WriteZero.into()
            } else {
                io::ErrorKind::UnexpectedEof.into()
            })),
            0.. => {
                self.num_done += result.unsigned_abs() as usize;
                (self.num_done >= self.len).then_some(Ok(()))
            }
            error => {
                let error = io::Error::from_raw_os_error(-error);
                let again =
                    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
                (!again).then_some(Err(error))
            }
        }
    }
}

impl Ring {
    /// A ring for `depth` operations in flight, 1 to 4,096.
    ///
    /// # Errors
    /// As the kernel's, where it has no `io_uring` or forbids it.
    pub fn new(depth: u32) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096).next_power_of_two();
        let ring = IoUring::builder().build(depth)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE) {
            Ok(Self { ring: Mutex::new(Some(ring)), depth: depth as usize })
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Runs transfers to their ends. `done` gets each one's index and result, once; those that it did not get,
    /// because the ring broke, are returned, and none of them is in flight. If it panics, the panic goes on
    /// after the last transfer.
    fn run(
        &self,
        transfers: &mut [Transfer],
        done: &mut dyn FnMut(usize, io::Result<()>),
        meanwhile: &mut dyn FnMut(),
    ) -> Vec<usize> {
        let mut guard = lock(&self.ring);
        let mut panicked = None;
        let mut meanwhile = Some(meanwhile);
        if let Some(ring) = guard.as_mut()
            && self.run_on(ring, transfers, done, &mut meanwhile, &mut panicked).is_err()
        {
            // The ring's queue still names buffers of this batch, so it must never be entered again.
            *guard = None;
        }
        drop(guard);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        if let Some(panic) = panicked {
            std::panic::resume_unwind(panic);
        }
        transfers.iter().enumerate().filter(|(_, it)| !it.is_finished).map(|(at, _)| at).collect()
    }

    /// The backend that takes over, once the ring is broken.
    fn threads(&self) -> Option<Threads> {
        let is_broken = lock(&self.ring).is_none();
        is_broken.then(|| Threads::new(self.depth.min(MOST_THREADS)))
    }

    /// As after an error of the kernel's.
    #[doc(hidden)]
    pub fn break_down(&self) {
        *lock(&self.ring) = None;
    }

    /// As [`Ring::run`]. After an error nothing is in flight, some transfers are not finished, and the
    /// ring is not to be used again.
    fn run_on(
        &self,
        ring: &mut IoUring,
        transfers: &mut [Transfer],
        done: &mut dyn FnMut(usize, io::Result<()>),
        meanwhile: &mut Option<&mut dyn FnMut()>,
        panicked: &mut Option<Panic>,
    ) -> io::Result<()> {
        let mut waiting: Vec<usize> = (0..transfers.len()).rev().collect();
        let mut in_flight = 0;
        let mut failure = None;
        let mut finished = Vec::with_capacity(self.depth);
        while in_flight > 0 || (failure.is_none() && !waiting.is_empty()) {
            while failure.is_none() && in_flight < self.depth {
                let Some(&at) = waiting.last() else { break };
                let entry = transfers[at].entry(at);
                // SAFETY: `transfers` point into buffers that the caller of `run` borrows for the whole
                // call, and this function returns only when no operation is in flight.
                if unsafe { ring.submission().push(&entry) }.is_err() {
                    break;
                }
                waiting.pop();
                in_flight += 1;
            }
            if failure.is_some() {
                thread::sleep(Duration::from_millis(1));
            } else if let Err(error) = ring.submit_and_wait(usize::from(meanwhile.is_none()))
                && !is_transient(&error)
            {
                // The kernel still completes what it took; what it did not take never starts.
                failure = Some(error);
                let mut submission = ring.submission();
                submission.sync();
                in_flight -= submission.len();
            }
            if let Some(meanwhile) = meanwhile.take() {
                catch(meanwhile, panicked);
            }
            for completion in ring.completion() {
                in_flight -= 1;
                let at = completion.user_data() as usize;
                match transfers[at].advance(completion.result()) {
                    Some(result) => finished.push((at, result)),
                    None => waiting.push(at),
                }
            }
            for (at, result) in finished.drain(..) {
                transfers[at].is_finished = true;
                let mut result = Some(result);
                let mut call = || result.take().into_iter().for_each(|result| done(at, result));
                catch(&mut call, panicked);
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

type Panic = Box<dyn std::any::Any + Send>;

/// Keeps the first panic for later: other operations still use their buffers.
fn catch(call: &mut dyn FnMut(), panicked: &mut Option<Panic>) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        panicked.get_or_insert(panic);
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

impl BlockIo for Ring {
    fn read(&self, ops: &mut [ReadOp<'_>], done: &mut OnRead<'_>) {
        if let Some(threads) = self.threads() {
            return threads.read(ops, done);
        }
        let transfer = |op: &mut ReadOp<'_>| {
            Transfer::new(op.file, op.offset, op.buffer.as_mut_ptr(), op.buffer.len(), false)
        };
        let mut transfers: Vec<_> = ops.iter_mut().map(transfer).collect();
        let mut ended = |at: usize, result| done(at, ops[at].buffer, result);
        for at in self.run(&mut transfers, &mut ended, &mut || ()) {
            let op = &mut ops[at];
            let result = op.file.read_exact_at(op.buffer, op.offset);
            done(at, op.buffer, result);
        }
    }

    fn write(&self, ops: &[WriteOp<'_>], meanwhile: &mut dyn FnMut()) -> Vec<io::Result<()>> {
        if let Some(threads) = self.threads() {
            return threads.write(ops, meanwhile);
        }
        let transfer = |op: &WriteOp<'_>| {
            let address = op.buffer.as_ptr().cast_mut();
            Transfer::new(op.file, op.offset, address, op.buffer.len(), true)
        };
        let mut transfers: Vec<_> = ops.iter().map(transfer).collect();
        let mut results: Vec<_> = ops.iter().map(|_| Ok(())).collect();
        for at in self.run(&mut transfers, &mut |at, result| results[at] = result, meanwhile) {
            results[at] = ops[at].file.write_all_at(ops[at].buffer, ops[at].offset);
        }
        results
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}
