//! Attributes of vLLM's `Request`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

/// Tokens of a list, to be compared with vLLM's counts.
pub(super) fn count(tokens: &Bound<'_, PyList>) -> i64 {
    tokens.len().cast_signed() as i64
}

/// A request by its attributes. None of those read here is computed, so that no Python code runs.
///
/// They are read where they are kept, which spares asking the class first whether it computes them.
pub(super) struct Request<'a, 'py> {
    pub(super) object: &'a Bound<'py, PyAny>,
    attributes: Bound<'py, PyDict>,
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident: $kind:ident $attribute:literal;)*) => {
        $($(#[$doc])* attributes!(@ $name $kind $attribute);)*
    };
    (@ $name:ident number $attribute:literal) => {
        pub(super) fn $name(&self) -> PyResult<i64> {
            self.get(intern!(self.object.py(), $attribute))?.extract()
        }
    };
    (@ $name:ident list $attribute:literal) => {
        pub(super) fn $name(&self) -> PyResult<Bound<'py, PyList>> {
            Ok(self.get(intern!(self.object.py(), $attribute))?.cast_into()?)
        }
    };
    (@ $name:ident object $attribute:literal) => {
        pub(super) fn $name(&self) -> PyResult<Bound<'py, PyAny>> {
            self.get(intern!(self.object.py(), $attribute))
        }
    };
    (@ $name:ident truth $attribute:literal) => {
        pub(super) fn $name(&self) -> PyResult<bool> {
            self.get(intern!(self.object.py(), $attribute))?.is_truthy()
        }
    };
    (@ $name:ident presence $attribute:literal) => {
        pub(super) fn $name(&self) -> PyResult<bool> {
            Ok(!self.get(intern!(self.object.py(), $attribute))?.is_none())
        }
    };
}

impl<'a, 'py> Request<'a, 'py> {
    pub(super) fn new(object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
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
        num_prompt: number "num_prompt_tokens";
        num_stale: number "num_stale_output_tokens";
        num_nans: number "num_nans_in_logits";
        max_tokens: number "max_tokens";
        tokens: list "_all_token_ids";
        output_tokens: list "_output_token_ids";
        client: object "client_index";
        status: object "status";
        trace_headers: object "trace_headers";
        prefill_stats: object "prefill_stats";
        sampling: object "sampling_params";
        is_prefill_chunk: truth "is_prefill_chunk";
        is_resumable: truth "resumable";
        has_drafts: truth "spec_token_ids";
        has_encoder_inputs: truth "mm_features";
        has_events: truth "events";
        has_hasher: presence "_block_hasher";
        has_grammar: presence "structured_output_request";
    }

    pub(super) fn id(&self) -> PyResult<Bound<'py, PyString>> {
        Ok(self.get(intern!(self.object.py(), "request_id"))?.cast_into()?)
    }

    pub(super) fn set_num_computed(&self, count: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "num_computed_tokens"), count)
    }

    pub(super) fn set_num_in_flight(&self, count: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "num_in_flight_tokens"), count)
    }

    pub(super) fn set_num_placeholders(&self, count: i64) -> PyResult<()> {
        self.attributes.set_item(intern!(self.object.py(), "num_output_placeholders"), count)
    }
}
