//! [`RequestView`]: attributes of vLLM's `Request`, read where they are kept.

use std::ops::{Deref, Range};

use hybrid_blocks::Digest;
use hybrid_blocks::vllm::RequestProgress;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::state::{Counts, Named, RequestState};

/// Length of a list of tokens, to be compared with vLLM's counts.
pub(crate) fn count(tokens: &Bound<'_, PyList>) -> i64 {
    tokens.len().cast_signed() as i64
}

/// A count of tokens. vLLM's may fall below 0, which stands for none: where a load of blocks failed,
/// `num_computed_tokens` goes back while later steps are still in flight.
#[inline]
pub(crate) fn at_least_none(count: i64) -> PyResult<u32> {
    Ok(u32::try_from(count.max(0))?)
}

/// A request's progress by vLLM's counts of tokens, as far as a decode step is judged by it.
#[inline]
pub(crate) fn progress(
    num_computed: i64,
    num_in_flight: i64,
    num_prompt: u32,
) -> PyResult<RequestProgress> {
    Ok(RequestProgress {
        num_computed: at_least_none(num_computed)?,
        num_prompt,
        num_in_flight: i32::try_from(num_in_flight)?,
        ..RequestProgress::default()
    })
}

/// A request by its attributes. Of those that vLLM's class computes, only `num_tokens` may be asked
/// for, and is counted here, so that no Python code runs.
///
/// Reading its dictionary spares asking the class for each attribute whether it computes it.
pub(crate) struct RequestView<'a, 'py> {
    pub(crate) object: &'a Bound<'py, PyAny>,
    pub(super) attributes: Attributes<'a, 'py>,
}

/// A request's dictionary. One that is kept is not touched before it is read.
pub(super) enum Attributes<'a, 'py> {
    Asked(Bound<'py, PyDict>),
    Kept(&'a Bound<'py, PyDict>),
}

impl<'py> Deref for Attributes<'_, 'py> {
    type Target = Bound<'py, PyDict>;

    #[inline]
    fn deref(&self) -> &Bound<'py, PyDict> {
        match self {
            Self::Asked(attributes) => attributes,
            Self::Kept(attributes) => attributes,
        }
    }
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident: $kind:ident $attribute:literal $(of $count:ident)?;)*) => {
        $($(#[$doc])* attributes!(@ $name $kind $attribute $(of $count)?);)*
    };
    (@ $name:ident count $attribute:literal of $count:ident) => {
        pub(crate) fn $name(&self) -> PyResult<i64> {
            let name = intern!(self.object.py(), $attribute);
            if let Some(value) = self.attributes.get_item(name)? {
                return value.extract();
            }
            match self.kept_counts()? {
                Some(counts) => Ok(counts.$count),
                None => self.object.getattr(name)?.extract(),
            }
        }
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
        Ok(Self { object, attributes: Attributes::Asked(attributes) })
    }

    /// One whose dictionary is known.
    #[inline]
    pub(crate) fn known(object: &'a Bound<'py, PyAny>, attributes: &'a Bound<'py, PyDict>) -> Self {
        Self { object, attributes: Attributes::Kept(attributes) }
    }

    pub(crate) fn attributes(&self) -> &Bound<'py, PyDict> {
        &self.attributes
    }

    fn get(&self, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        match self.attributes.get_item(name)? {
            Some(value) => Ok(value),
            None => self.object.getattr(name),
        }
    }

    attributes! {
        num_computed: count "num_computed_tokens" of computed;
        num_in_flight: count "num_in_flight_tokens" of in_flight;
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

    /// Whether its client may say something of its session, in attributes that a release may lack.
    pub(crate) fn has_client_hints(&self) -> PyResult<bool> {
        let py = self.object.py();
        for name in [intern!(py, "session_id"), intern!(py, "kv_hints")] {
            if self.attributes.get_item(name)?.is_some_and(|said| !said.is_none()) {
                return Ok(true);
            }
        }
        let further = self.sampling()?.getattr_opt(intern!(py, "extra_args"))?;
        Ok(further.is_some_and(|further| !further.is_none()))
    }

    /// Whether it is over, and not preempted.
    pub(crate) fn is_finished(&self) -> PyResult<bool> {
        self.object.call_method0(intern!(self.object.py(), "is_finished"))?.is_truthy()
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

    pub(crate) fn set_num_in_flight(&self, count: i64) -> PyResult<()> {
        self.object.setattr(intern!(self.object.py(), "num_in_flight_tokens"), count)
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

    /// The counts that a decode step is judged by.
    pub(crate) fn progress(&self) -> PyResult<RequestProgress> {
        progress(self.num_computed()?, self.num_in_flight()?, self.num_prompt()?)
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

    fn found_state(&self) -> PyResult<Option<Bound<'py, RequestState>>> {
        let found = self.attributes.get_item(intern!(self.object.py(), "_hybrid_blocks"))?;
        Ok(found.and_then(|found| found.cast_into::<RequestState>().ok()))
    }

    /// The state of the request between calls, if there is any.
    #[inline]
    pub(crate) fn state(&self) -> PyResult<Option<Bound<'py, RequestState>>> {
        Ok(self.found_state()?.filter(|state| state.get().owner == address(self.object)))
    }

    /// Keeps a value on the request, over the one kept before.
    pub(crate) fn keep(&self, named: Named, digests: Vec<Digest>) -> PyResult<()> {
        match self.state()? {
            Some(state) => state.get().keep(named, digests),
            None => self.set_state(named, digests).map(drop),
        }
    }

    /// Puts a state into the request, with the counts of the one that a copy was made with.
    fn set_state(&self, named: Named, digests: Vec<Digest>) -> PyResult<Bound<'py, RequestState>> {
        let state = RequestState::of(address(self.object), named, digests);
        if let Some(counts) = self.found_state()?.and_then(|before| before.get().counts()) {
            state.set_counts(counts);
        }
        let state = Bound::new(self.object.py(), state)?;
        self.attributes.set_item(intern!(self.object.py(), "_hybrid_blocks"), &state)?;
        Ok(state)
    }

    /// The request's counts, if they are not in its dictionary.
    pub(super) fn kept_counts(&self) -> PyResult<Option<Counts>> {
        let Some(found) = self.found_state()? else { return Ok(None) };
        match found.get().counts() {
            // A copy goes its own way from here.
            Some(_) if found.get().owner != address(self.object) => {
                Ok(self.set_state(Named::default(), Vec::new())?.get().counts())
            }
            counts => Ok(counts),
        }
    }

    /// The request's state, which keeps its counts from now on, and these.
    pub(crate) fn counting(&self) -> PyResult<(Bound<'py, RequestState>, Counts)> {
        let state = match self.state()? {
            Some(state) => state,
            None => self.set_state(Named::default(), Vec::new())?,
        };
        if let Some(counts) = state.get().counts() {
            return Ok((state, counts));
        }
        let mut counts = Counts::default();
        for (name, of) in Counts::by_name(self.object.py()) {
            *of(&mut counts) = self.take_count(name)?;
        }
        state.get().set_counts(counts);
        Ok((state, counts))
    }

    /// Writes the counts into a dictionary of attributes, over the kept ones.
    pub(super) fn put_counts_into(&self, attributes: &Bound<'py, PyDict>) -> PyResult<()> {
        let py = self.object.py();
        if let Some(mut counts) = self.kept_counts()? {
            for (name, of) in Counts::by_name(py) {
                attributes.set_item(name, *of(&mut counts))?;
            }
        }
        let kept = intern!(py, "_hybrid_blocks");
        if attributes.contains(kept)? { attributes.del_item(kept) } else { Ok(()) }
    }

    /// Puts the counts back into the request's dictionary. The state keeps none of them any more.
    pub(super) fn give_counts_back(&self) -> PyResult<()> {
        let state = self.state()?;
        self.put_counts_into(&self.attributes)?;
        if let Some(state) = state {
            state.get().forget_counts();
        }
        Ok(())
    }

    /// Takes a count out of the request's dictionary; 0 if it was not set yet.
    fn take_count(&self, name: &Bound<'py, PyString>) -> PyResult<i64> {
        let Some(count) = self.attributes.get_item(name)? else { return Ok(0) };
        self.attributes.del_item(name)?;
        count.extract()
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

fn address(request: &Bound<'_, PyAny>) -> usize {
    request.as_ptr().addr()
}
