//! [`Threads`]: `pread` and `pwrite` on several threads.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;

use super::{BlockIo, OnRead, ReadOp, WriteOp};

/// Runs each batch on threads of its own, which end with it. Where the system has no thread left, the calling
/// one does all the work.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    most: usize,
}

impl Threads {
    /// At most `most` threads a batch, at least 1.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1) }
    }
}

impl BlockIo for Threads {
    fn read(&self, ops: &mut [ReadOp<'_>], done: &mut OnRead<'_>) {
        if let [op] = ops {
            let result = op.file.read_exact_at(op.buffer, op.offset);
            return done(0, op.buffer, result);
        }
        let num_threads = self.most.min(ops.len());
        let queue = Mutex::new(ops.iter_mut().enumerate());
        let (sender, results) = mpsc::channel();
        let read_all = |sender: &mpsc::Sender<_>| {
            while let Some((at, op)) = next(&queue) {
                let result = op.file.read_exact_at(op.buffer, op.offset);
                if sender.send((at, op, result)).is_err() {
                    break;
                }
            }
        };
        let read_all = &read_all;
        thread::scope(|scope| {
            let num_spawned = spawn(scope, num_threads, || {
                let sender = sender.clone();
                move || read_all(&sender)
            });
            if num_spawned == 0 {
                read_all(&sender);
            }
            drop(sender);
            for (at, op, result) in results {
                done(at, op.buffer, result);
            }
        });
    }

    fn write(&self, ops: &[WriteOp<'_>], meanwhile: &mut dyn FnMut()) -> Vec<io::Result<()>> {
        let write = |op: &WriteOp<'_>| op.file.write_all_at(op.buffer, op.offset);
        let num_threads = self.most.min(ops.len());
        if num_threads <= 1 {
            meanwhile();
            return ops.iter().map(write).collect();
        }
        let queue = Mutex::new(ops.iter().enumerate());
        let results = Mutex::new(ops.iter().map(|_| Ok(())).collect::<Vec<_>>());
        let write_all = || {
            while let Some((at, op)) = next(&queue) {
                let result = write(op);
                if let Ok(mut results) = results.lock() {
                    results[at] = result;
                }
            }
        };
        thread::scope(|scope| {
            let num_spawned = spawn(scope, num_threads, || &write_all);
            meanwhile();
            if num_spawned == 0 {
                write_all();
            }
        });
        results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

/// Starts up to `most` threads, as many as can be had, and returns how many.
fn spawn<'scope, F: FnOnce() + Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    most: usize,
    mut job: impl FnMut() -> F,
) -> usize {
    (0..most).map_while(|_| thread::Builder::new().spawn_scoped(scope, job()).ok()).count()
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().ok()?.next()
}
