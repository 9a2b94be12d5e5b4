//! [`RequestView`]: attributes of vLLM's `Request`, read where they are kept.

use std::ops::Range;
use std::sync::Mutex;

use hybrid_blocks::Digest;
use hybrid_blocks::vllm::RequestProgress;
use hybrid_blocks_interop::integrity_error;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

/// Length of a list of tokens, to be compared with vLLM's counts.
pub(crate) fn count(tokens: &Bound<'_, PyList>) -> i64 {
    tokens.len().cast_signed() as i64
}

/// A request by its attributes. Of those that vLLM's class computes, only `num_tokens` may be asked
/// for, and is counted here, so that no Python code runs.
///
/// Reading its dictionary spares asking the class for each attribute whether it computes it.
pub(crate) struct RequestView<'a, 'py> {
    pub(crate) object: &'a Bound<'py, PyAny>,
    pub(crate) attributes: Bound<'py, PyDict>,
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident: $kind:ident $attribute:literal;)*) => {
        $($(#[$doc])* attributes!(@ $name $kind $attribute);)*
    };
    (@ $name:ident number $attribute:literal) => {
        pub(crate) fn $name(&self) -> PyResult<i64> {
            self.get(intern!(self.object.py(), $attribute))?.extract()
        }
    };
    (@ $name:ident size $attribute:literal) => {
        pub(crate) fn $name(&self) -> PyResult<u32> {
            self.get(intern!(self.object.py(), $attribute))?.extract()
        }
    };
    (@ $name:ident list $attribute:literal) => {
        pub(crate) fn $name(&self) -> PyResult<Bound<'py, PyList>> {
            Ok(self.get(intern!(self.object.py(), $attribute))?.cast_into()?)
        }
    };
    (@ $name:ident object $attribute:literal) => {
        pub(crate) fn $name(&self) -> PyResult<Bound<'py, PyAny>> {
            self.get(intern!(self.object.py(), $attribute))
        }
    };
    (@ $name:ident truth $attribute:literal) => {
        pub(crate) fn $name(&self) -> PyResult<bool> {
            self.get(intern!(self.object.py(), $attribute))?.is_truthy()
        }
    };
    (@ $name:ident presence $attribute:literal) => {
        pub(crate) fn $name(&self) -> PyResult<bool> {
            Ok(!self.get(intern!(self.object.py(), $attribute))?.is_none())
        }
    };
}

impl<'a, 'py> RequestView<'a, 'py> {
    pub(crate) fn new(object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let attributes = object.getattr(intern!(object.py(), "__dict__"))?.cast_into()?;
        Ok(Self { object, attributes })
    }

    fn get(&self, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        match self.attributes.get_item(name)? {
            Some(value) => Ok(value),
            None => self.object.getattr(name),
        }
    }

    attributes! {
        num_computed: number "num_computed_tokens";
        num_in_flight: number "num_in_flight_tokens";
        num_placeholders: number "num_output_placeholders";
        num_prompt: size "num_prompt_tokens";
        num_stale: number "num_stale_output_tokens";
        num_nans: number "num_nans_in_logits";
        num_preemptions: number "num_preemptions";
        max_tokens: number "max_tokens";
        next_eligible: number "next_decode_eligible_step";
        tokens: list "_all_token_ids";
        output_tokens: list "_output_token_ids";
        drafts: list "spec_token_ids";
        images: list "mm_features";
        block_hashes: object "block_hashes";
        client: object "client_index";
        status: object "status";
        trace_headers: object "trace_headers";
        prefill_stats: object "prefill_stats";
        sampling: object "sampling_params";
        block_hasher: object "_block_hasher";
        spec_decode_metrics: object "spec_decode_metrics";
        is_prefill_chunk: truth "is_prefill_chunk";
        is_resumable: truth "resumable";
        skips_prefix_cache: truth "skip_reading_prefix_cache";
        has_encoder_inputs: truth "mm_features";
        has_lora: truth "lora_request";
        has_salt: truth "cache_salt";
        has_embeds: presence "prompt_embeds";
        has_events: truth "events";
        has_grammar: presence "structured_output_request";
    }

    pub(crate) fn id(&self) -> PyResult<Bound<'py, PyString>> {
        Ok(self.get(intern!(self.object.py(), "request_id"))?.cast_into()?)
    }

    pub(crate) fn num_tokens(&self) -> PyResult<u32> {
        let py = self.object.py();
        if let Some(tokens) = self.attributes.get_item(intern!(py, "_all_token_ids"))?
            && let Ok(tokens) = tokens.cast::<PyList>()
        {
            return Ok(tokens.len() as u32);
        }
        self.get(intern!(py, "num_tokens"))?.extract()
    }

    pub(crate) fn set_num_computed(&self, count: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "num_computed_tokens"), count)
    }

    pub(crate) fn set_num_in_flight(&self, count: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "num_in_flight_tokens"), count)
    }

    pub(crate) fn set_num_placeholders(&self, count: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "num_output_placeholders"), count)
    }

    pub(crate) fn set_drafts(&self, drafts: &Bound<'py, PyList>) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "spec_token_ids"), drafts)
    }

    pub(crate) fn set_next_eligible(&self, step: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "next_decode_eligible_step"), step)
    }

    pub(crate) fn set_last_step(&self, step: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "last_sched_seq"), step)
    }

    /// What a decode step is judged by.
    pub(crate) fn progress(&self) -> PyResult<RequestProgress> {
        Ok(RequestProgress {
            num_computed: u32::try_from(self.num_computed()?)?,
            num_prompt: self.num_prompt()?,
            num_in_flight: u32::try_from(self.num_in_flight()?)?,
            ..RequestProgress::default()
        })
    }

    /// Beside its progress, what any other step is judged by; the boundary only where it is heeded,
    /// and not whether the request waits.
    pub(crate) fn complete(
        &self,
        progress: RequestProgress,
        heeds_boundary: bool,
    ) -> PyResult<RequestProgress> {
        let py = self.object.py();
        let boundary = if heeds_boundary {
            self.object.getattr_opt(intern!(py, "shared_prefix_boundary"))?
        } else {
            None
        };
        Ok(RequestProgress {
            num_tokens: self.num_tokens()?,
            shared_prefix_boundary: boundary.map_or(Ok(0), |boundary| boundary.extract())?,
            ..progress
        })
    }

    /// Whether the request is in one of the states of those to be admitted.
    pub(crate) fn is_waiting(&self, waiting: &[Py<PyAny>]) -> PyResult<bool> {
        let status = self.status()?;
        Ok(waiting.iter().any(|state| status.is(state)))
    }

    /// What is kept of the request between calls, if anything is.
    #[inline]
    pub(crate) fn state(&self) -> PyResult<Option<Bound<'py, RequestState>>> {
        let found = self.attributes.get_item(intern!(self.object.py(), "_hybrid_blocks"))?;
        let state = found.and_then(|found| found.cast_into::<RequestState>().ok());
        Ok(state.filter(|state| state.get().owner == address(self.object)))
    }

    /// Keep something of the request, in place of what was kept before.
    pub(crate) fn keep(&self, named: Named, digests: Vec<Digest>) -> PyResult<()> {
        let kept = Mutex::new(Kept { named, digests });
        let state = RequestState { owner: address(self.object), kept };
        let state = Bound::new(self.object.py(), state)?;
        self.attributes.set_item(intern!(self.object.py(), "_hybrid_blocks"), state)
    }
}

/// The tokens that stand for an input of the encoder.
pub(crate) fn span(image: &Bound<'_, PyAny>) -> PyResult<Range<i64>> {
    let py = image.py();
    let position = image.getattr(intern!(py, "mm_position"))?;
    let offset = position.getattr(intern!(py, "offset"))?.extract()?;
    let length: i64 = position.getattr(intern!(py, "length"))?.extract()?;
    Ok(offset..offset + length)
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

/// What is kept of a request between calls, on the request itself: how its block manager names it,
/// and digests on their way from the hasher to the manager.
///
/// A copy of a request has the state of the one that it was copied from, which does not count.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct RequestState {
    /// The request's address.
    owner: usize,
    kept: Mutex<Kept>,
}

impl RequestState {
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

    /// The digests that the hasher made, once.
    pub(crate) fn take_digests(&self) -> PyResult<Vec<Digest>> {
        self.with(|kept| std::mem::take(&mut kept.digests))
    }
}

#[pymethods]
impl RequestState {
    /// One that counts for no request: what a copy of a request starts with.
    #[new]
    fn new() -> Self {
        Self { owner: 0, kept: Mutex::default() }
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyAny>, ()) {
        (slf.get_type().into_any(), ())
    }
}

fn address(request: &Bound<'_, PyAny>) -> usize {
    request.as_ptr().addr()
}
