//! The calls from Rust to Python methods of this package. `_core/vllm.pyi` has their types.
//!
//! No lock is held while one of them runs.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::hasher::RequestHasher;
use crate::manager::{AllocatedBlocks, RustKVCacheManager};

/// A manager as its derived Python class: `ManagerHooks` in the stub.
pub(crate) struct ManagerHooks<'a, 'py>(pub(crate) &'a Bound<'py, RustKVCacheManager>);

impl<'py> ManagerHooks<'_, 'py> {
    /// The groups and what they share.
    pub(crate) fn geometry(&self) -> PyResult<Bound<'py, PyAny>> {
        self.0.call_method0(intern!(self.0.py(), "_geometry"))
    }

    /// Passes changes of the prefix cache on, which a request's call caused.
    pub(crate) fn note_events(
        &self,
        request: &Bound<'py, PyAny>,
        changes: Bound<'py, PyList>,
    ) -> PyResult<()> {
        self.0.call_method1(intern!(self.0.py(), "_note_events"), (request, changes)).map(drop)
    }

    /// Passes changes of blocks on, in order.
    pub(crate) fn note_residency(&self, changes: Bound<'py, PyList>) -> PyResult<()> {
        self.0.call_method1(intern!(self.0.py(), "_note_residency"), (changes,)).map(drop)
    }

    /// Reports the blocks of a hit of `num_tokens`.
    pub(crate) fn report_hit(
        &self,
        request: &Bound<'py, PyAny>,
        blocks: &Bound<'py, AllocatedBlocks>,
        num_tokens: u32,
    ) -> PyResult<()> {
        let arguments = (request, blocks, num_tokens);
        self.0.call_method1(intern!(self.0.py(), "_report_hit"), arguments).map(drop)
    }

    /// Returns the session of a request and its hint, as far as the client sent them.
    pub(crate) fn client_hints(
        &self,
        request: &Bound<'py, PyAny>,
    ) -> PyResult<(Option<String>, Bound<'py, PyAny>)> {
        self.0.call_method1(intern!(self.0.py(), "_client_hints"), (request,))?.extract()
    }
}

/// A hasher as its derived Python class: `HasherHooks` in the stub.
pub(crate) struct HasherHooks<'a, 'py>(pub(crate) &'a Bound<'py, RequestHasher>);

impl<'py> HasherHooks<'_, 'py> {
    /// Returns the extra keys of a request's blocks, from token `start` on.
    pub(crate) fn extra_keys(
        &self,
        request: &Bound<'py, PyAny>,
        start: usize,
        num_blocks: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = (request, start, num_blocks);
        self.0.call_method1(intern!(self.0.py(), "_extra_keys"), arguments)
    }
}

/// A scheduler with one call for all requests that decode: `SchedulerHooks` in the stub.
pub(crate) struct SchedulerHooks<'a, 'py>(pub(crate) &'a Bound<'py, PyAny>);

impl<'py> SchedulerHooks<'_, 'py> {
    /// Returns whether a request's grammar accepts tokens. A request that it rejects ends.
    pub(crate) fn accepts(
        &self,
        request: &Bound<'py, PyAny>,
        token_ids: &Bound<'py, PyList>,
    ) -> PyResult<bool> {
        let arguments = (request, token_ids);
        self.0.call_method1(intern!(self.0.py(), "_accepts"), arguments)?.is_truthy()
    }

    /// Frees a request that is done, and completes its last output.
    pub(crate) fn end(
        &self,
        request: &Bound<'py, PyAny>,
        output: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        self.0.call_method1(intern!(self.0.py(), "_end"), (request, output)).map(drop)
    }

    /// Frees inputs of the encoder that are computed; returns whether a request has others.
    pub(crate) fn free_inputs(&self, request: &Bound<'py, PyAny>) -> PyResult<bool> {
        self.0.call_method1(intern!(self.0.py(), "_free_inputs"), (request,))?.is_truthy()
    }
}
