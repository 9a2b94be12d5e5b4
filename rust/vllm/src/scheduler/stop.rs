//! When a request has generated enough.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

pub(super) enum Stop {
    /// A token that ends the text.
    EndOfText,
    /// A token that the caller asked to stop at.
    Token,
    /// The request's limit, or the model's.
    Length,
}

/// Tokens that end a request's output.
pub(super) struct StopRule {
    end_of_text: Option<i64>,
    tokens: Vec<i64>,
}

impl StopRule {
    /// Read sampling parameters; `None` where more than tokens and lengths decides.
    pub(super) fn read(sampling: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = sampling.py();
        if sampling.is_none() || !sampling.getattr(intern!(py, "repetition_detection"))?.is_none() {
            return Ok(None);
        }
        let end_of_text = sampling.getattr(intern!(py, "eos_token_id"))?;
        let tokens = sampling.getattr(intern!(py, "stop_token_ids"))?;
        let tokens = match tokens.cast::<PyList>() {
            Ok(tokens) => tokens.extract(),
            Err(_) => Ok(Vec::new()),
        };
        // Anything but whole numbers is vLLM's to compare.
        let (Ok(end_of_text), Ok(tokens)) = (end_of_text.extract(), tokens) else {
            return Ok(None);
        };
        Ok(Some(Self { end_of_text, tokens }))
    }

    /// Why a request ends with `token`, its latest, if it does.
    pub(super) fn reason(&self, token: i64, is_full: bool) -> Option<Stop> {
        if self.end_of_text == Some(token) {
            Some(Stop::EndOfText)
        } else if self.tokens.contains(&token) {
            Some(Stop::Token)
        } else {
            is_full.then_some(Stop::Length)
        }
    }
}
