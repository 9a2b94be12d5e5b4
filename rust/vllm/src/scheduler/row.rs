//! [`Row`]: what does not change of a request while it decodes, kept from step to step.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::batch::DecodeBatch;
use super::stop::StopRule;
use crate::hasher::RequestHasher;
use crate::request::{Counts, RequestState, RequestView, span};

/// The hasher of a request's blocks.
pub(super) enum Hasher {
    None,
    Ours(Py<RequestHasher>),
    /// The scheduler calls it after each token.
    Other,
}

impl Hasher {
    fn of(request: &RequestView<'_, '_>) -> PyResult<Self> {
        let hasher = request.block_hasher()?;
        if hasher.is_none() {
            return Ok(Self::None);
        }
        let is_list = request.block_hashes()?.is_instance_of::<PyList>();
        Ok(match hasher.cast_into::<RequestHasher>() {
            Ok(ours) if is_list => Self::Ours(ours.unbind()),
            _ => Self::Other,
        })
    }
}

/// The tokens of one request that a step makes room for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scheduled {
    /// Tokens, those that were drafted included.
    pub(super) num_new: i64,
    pub(super) num_drafts: i64,
}

/// A request that decodes.
///
/// All but its counts and drafts is read once. If vLLM changes anything else of such a request, it
/// also changes a count: preemption, a step or an output that it dealt with itself. So the row is
/// refreshed if a count is not the one that this code left.
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a request")]
pub(super) struct Row {
    pub(super) request: Py<PyAny>,
    attributes: Py<PyDict>,
    /// Where its counts are.
    state: Py<RequestState>,
    /// How often its status had been set when it was known to run.
    running_at: Option<u32>,
    pub(super) id: Py<PyString>,
    pub(super) tokens: Py<PyList>,
    pub(super) output_tokens: Py<PyList>,
    pub(super) client: Py<PyAny>,
    pub(super) hasher: Hasher,
    pub(super) handle: Option<u64>,
    pub(super) num_prompt: i64,
    pub(super) max_tokens: i64,
    pub(super) has_grammar: bool,
    pub(super) wants_logprobs: bool,
    /// vLLM's `RequestSpecDecodeMetrics`, where each request is to have its own.
    pub(super) spec_metrics: Option<Py<PyAny>>,
    pub(super) has_images: bool,
    /// Whether the encoder cache may hold inputs of it.
    pub(super) has_cached_inputs: bool,
    /// When its output ends; `None` where more than its tokens decides.
    pub(super) stop: Option<StopRule>,
    /// The tokens that the step being scheduled makes room for.
    pub(super) scheduled: Scheduled,
    /// The step that made room for it last, as vLLM numbers steps; -1 for none known.
    pub(super) last_step: i64,
    /// Whether more may be to say of its next output than the token.
    pub(super) is_new: bool,
    /// The counts as this code left them.
    pub(super) counts: Counts,
}

impl Row {
    /// Reads a request; `None` if it does more than decode.
    pub(super) fn read(
        batch: &DecodeBatch,
        request: &RequestView<'_, '_>,
    ) -> PyResult<Option<Self>> {
        // A request of another class sets its counts and status without a descriptor that would notice.
        if !request.object.is_instance(batch.request_class.bind(request.object.py()))? {
            return Ok(None);
        }
        let (state, counts) = request.counting()?;
        let num_prompt = i64::from(request.num_prompt()?);
        if counts.computed < num_prompt || request.is_prefill_chunk()? {
            return Ok(None);
        }
        let has_images = request.has_encoder_inputs()?;
        if has_images && !ends_before(request, num_prompt)? {
            return Ok(None);
        }
        let sampling = request.sampling()?;
        let stop = if sampling.is_none() || request.num_stale()? > 0 || request.is_resumable()? {
            None
        } else {
            Some(StopRule::read(&sampling)?)
        };
        let spec_metrics = request.spec_decode_metrics()?;
        Ok(Some(Self {
            request: request.object.clone().unbind(),
            attributes: request.attributes().clone().unbind(),
            state: state.unbind(),
            running_at: None,
            id: request.id()?.unbind(),
            tokens: request.tokens()?.unbind(),
            output_tokens: request.output_tokens()?.unbind(),
            client: request.client()?.unbind(),
            hasher: Hasher::of(request)?,
            handle: None,
            num_prompt,
            max_tokens: request.max_tokens()?,
            has_grammar: request.has_grammar()?,
            wants_logprobs: stop.is_some()
                && !sampling.getattr(intern!(sampling.py(), "num_logprobs"))?.is_none(),
            spec_metrics: (!spec_metrics.is_none()).then(|| spec_metrics.unbind()),
            has_images,
            has_cached_inputs: has_images,
            stop,
            scheduled: Scheduled::default(),
            last_step: -1,
            is_new: true,
            counts,
        }))
    }

    #[inline]
    pub(super) fn view<'a, 'py>(&'a self, py: Python<'py>) -> RequestView<'a, 'py> {
        RequestView::known(self.request.bind(py), self.attributes.bind(py))
    }

    /// Whether no other code changed a count.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.state.get().counts() == Some(self.counts)
    }

    /// Lets the request have these counts. They are the row's once the caller is done with it.
    #[inline]
    pub(super) fn show(&self, counts: Counts) {
        self.state.get().set_counts(counts);
    }

    /// Whether the request runs.
    #[inline]
    pub(super) fn is_running(&mut self, running: &Py<PyAny>, py: Python<'_>) -> PyResult<bool> {
        let num_changes = Some(self.state.get().num_status_changes());
        if self.running_at != num_changes {
            let runs = self.view(py).status()?.is(running);
            self.running_at = num_changes.filter(|_| runs);
        }
        Ok(self.running_at.is_some())
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.request)?;
        visit.call(&self.attributes)?;
        visit.call(&self.tokens)?;
        visit.call(&self.output_tokens)?;
        if let Hasher::Ours(hasher) = &self.hasher {
            visit.call(hasher)?;
        }
        visit.call(&self.client)
    }
}

/// Whether all inputs of the encoder end within the first `num_tokens` tokens.
fn ends_before(request: &RequestView<'_, '_>, num_tokens: i64) -> PyResult<bool> {
    for image in request.images()? {
        if span(&image)?.end > num_tokens {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Rows in the order of the running requests.
#[derive(Default)]
pub(super) struct Rows(pub(super) Vec<Row>);

impl Rows {
    /// Lets the row at `index` be that of a request, if there is one; those between are of requests
    /// that run no more.
    pub(super) fn has_at(&mut self, index: usize, request: &Bound<'_, PyAny>) -> bool {
        let rest = self.0.get(index..).unwrap_or_default();
        match rest.iter().position(|row| row.request.is(request)) {
            None => false,
            Some(0) => true,
            Some(distance) => {
                self.0.drain(index..index + distance);
                true
            }
        }
    }

    /// The first row from `index` on with this very id.
    pub(super) fn find(&self, index: usize, id: &Bound<'_, PyAny>) -> Option<usize> {
        let rest = self.0.get(index..).unwrap_or_default();
        rest.iter().position(|row| row.id.is(id)).map(|distance| index + distance)
    }
}
