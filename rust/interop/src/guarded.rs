//! A part of the core that Python threads share.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use hybrid_blocks::Error;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::error::{core_error, integrity_error};

/// One call at a time. A panic inside becomes an `IntegrityError`, and so does every later call:
/// what the panic interrupted may be half done.
pub struct Guarded<T>(Mutex<T>);

impl<T> Guarded<T> {
    /// Puts `inner` behind a lock that a panic closes for good.
    pub fn new(inner: T) -> Self {
        Self(Mutex::new(inner))
    }

    /// Runs `call` alone. It makes no Python object, since that may run the garbage collector and,
    /// through it, anything that waits for this lock.
    ///
    /// # Errors
    /// `IntegrityError` where this call or an earlier one panicked.
    pub fn with<R>(&self, py: Python<'_>, call: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let mut inner = self.0.lock_py_attached(py).map_err(|_| {
            integrity_error("an earlier call panicked and left it undefined; make a new one".into())
        })?;
        // The guard is dropped while the panic unwinds, which poisons the lock.
        caught(
            move || call(&mut inner),
            |message| format!("the core panicked: {message}; make a new one"),
        )
    }

    /// As [`Guarded::with`], for calls that the core may refuse.
    ///
    /// # Errors
    /// The core's error, and those of [`Guarded::with`].
    pub fn call<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> Result<R, Error>,
    ) -> PyResult<R> {
        self.with(py, call)?.map_err(core_error)
    }
}

/// Runs `call`; a panic becomes an `IntegrityError` with what `describe` makes of its message. Locks
/// that the call held stay poisoned.
///
/// # Errors
/// `IntegrityError` where the call panicked.
pub fn caught<R>(call: impl FnOnce() -> R, describe: impl FnOnce(&str) -> String) -> PyResult<R> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(|panic| integrity_error(describe(message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
