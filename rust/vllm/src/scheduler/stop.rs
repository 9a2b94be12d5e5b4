//! When a request has generated enough.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// The rule that ends a request's output.
pub(super) enum StopRule {
    /// These tokens, or its length.
    Tokens { end_of_text: Option<i64>, others: Vec<i64> },
    /// The answer of vLLM's code for each token.
    Asked,
}

impl StopRule {
    /// Reads sampling parameters.
    pub(super) fn read(sampling: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = sampling.py();
        if !sampling.getattr(intern!(py, "repetition_detection"))?.is_none() {
            return Ok(Self::Asked);
        }
        let end_of_text = sampling.getattr(intern!(py, "eos_token_id"))?;
        let others = sampling.getattr(intern!(py, "stop_token_ids"))?;
        let others = match others.cast::<PyList>() {
            Ok(tokens) => tokens.extract(),
            Err(_) if others.is_none() => Ok(Vec::new()),
            Err(_) => return Ok(Self::Asked),
        };
        // Anything but whole numbers is vLLM's to compare.
        let (Ok(end_of_text), Ok(others)) = (end_of_text.extract(), others) else {
            return Ok(Self::Asked);
        };
        Ok(Self::Tokens { end_of_text, others })
    }
}
