//! [`RequestState`]: the state of a request between calls.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};

use hybrid_blocks::Digest;
use hybrid_blocks_interop::integrity_error;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The counts of a request that change with every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) computed: i64,
    pub(crate) in_flight: i64,
    pub(crate) placeholders: i64,
}

/// One of the counts.
pub(super) type CountOf = fn(&mut Counts) -> &mut i64;

impl Counts {
    /// Each count by the name of vLLM's attribute.
    pub(super) fn by_name(py: Python<'_>) -> [(&Bound<'_, PyString>, CountOf); 3] {
        [
            (intern!(py, "num_computed_tokens"), |counts| &mut counts.computed),
            (intern!(py, "num_in_flight_tokens"), |counts| &mut counts.in_flight),
            (intern!(py, "num_output_placeholders"), |counts| &mut counts.placeholders),
        ]
    }

    /// Tokens that are computed whatever becomes of the steps in flight.
    pub(crate) fn num_certain(&self) -> i64 {
        self.computed - self.placeholders
    }
}

/// How a block manager names a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// The manager's number, from 1.
    pub(crate) manager: u64,
    pub(crate) handle: u64,
}

#[derive(Default)]
struct Kept {
    named: Named,
    digests: Vec<Digest>,
}

/// The state of a request between calls, on the request itself: its counts, once they are not in
/// its dictionary any more; how its block manager names it; and digests on their way from the
/// hasher to the manager.
///
/// A copy of a request has the state of its original, and takes over only the counts.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
#[derive(Default)]
pub(crate) struct RequestState {
    /// The request's address.
    pub(super) owner: usize,
    has_counts: AtomicBool,
    computed: AtomicI64,
    in_flight: AtomicI64,
    placeholders: AtomicI64,
    num_status_changes: AtomicU32,
    kept: Mutex<Kept>,
}

// The GIL orders what Python threads do to the counts.
impl RequestState {
    pub(super) fn of(owner: usize, named: Named, digests: Vec<Digest>) -> Self {
        Self { owner, kept: Mutex::new(Kept { named, digests }), ..Self::default() }
    }

    /// Returns the request's counts, if they are kept here.
    #[inline]
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.has_counts.load(Relaxed).then(|| Counts {
            computed: self.computed.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            placeholders: self.placeholders.load(Relaxed),
        })
    }

    /// Keeps its counts here from now on.
    #[inline]
    pub(crate) fn set_counts(&self, counts: Counts) {
        self.computed.store(counts.computed, Relaxed);
        self.in_flight.store(counts.in_flight, Relaxed);
        self.placeholders.store(counts.placeholders, Relaxed);
        self.has_counts.store(true, Relaxed);
    }

    /// Stops keeping the request's counts here.
    pub(super) fn forget_counts(&self) {
        self.has_counts.store(false, Relaxed);
    }

    /// How often its status was set.
    #[inline]
    pub(crate) fn num_status_changes(&self) -> u32 {
        self.num_status_changes.load(Relaxed)
    }

    pub(super) fn note_status_change(&self) {
        self.num_status_changes.fetch_add(1, Relaxed);
    }

    fn with<R>(&self, call: impl FnOnce(&mut Kept) -> R) -> PyResult<R> {
        let kept = self.kept.lock();
        Ok(call(&mut *kept.map_err(|_| integrity_error("a request's state is lost".to_owned()))?))
    }

    #[inline]
    pub(crate) fn named(&self) -> PyResult<Named> {
        self.with(|kept| kept.named)
    }

    pub(crate) fn set_named(&self, named: Named) -> PyResult<()> {
        self.with(|kept| kept.named = named)
    }

    pub(super) fn keep(&self, named: Named, digests: Vec<Digest>) -> PyResult<()> {
        self.with(|kept| *kept = Kept { named, digests })
    }

    /// The digests that the hasher made, once.
    pub(crate) fn take_digests(&self) -> PyResult<Vec<Digest>> {
        self.with(|kept| std::mem::take(&mut kept.digests))
    }
}

#[pymethods]
impl RequestState {
    /// One that is no request's own: what a copy of a request starts with.
    #[new]
    #[pyo3(signature = (counts = None))]
    fn new(counts: Option<[i64; 3]>) -> Self {
        let state = Self::default();
        if let Some([computed, in_flight, placeholders]) = counts {
            state.set_counts(Counts { computed, in_flight, placeholders });
        }
        state
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyAny>, (Option<[i64; 3]>,)) {
        let counts = slf.get().counts();
        let counts = counts.map(|counts| [counts.computed, counts.in_flight, counts.placeholders]);
        (slf.get_type().into_any(), (counts,))
    }
}
