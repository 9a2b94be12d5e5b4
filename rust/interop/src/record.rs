//! Lines of recorded traffic: a finished request each, written without Python's objects between.

use std::sync::{Mutex, PoisonError};

use hybrid_blocks::hash::{Hashes, KEY_BYTES, KeyedDigests};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use rustc_hash::FxHashMap;

use crate::error::invalid_argument;

const MICROSECONDS: f64 = 1e6;
const SIX_DIGITS: u64 = 1_000_000;
/// Bytes of a line of a few thousand tokens.
const LINE_BYTES: usize = 2048;

/// Writes the lines of one file; its key is never shown.
#[pyclass(name = "RecordLines", module = "hybrid_blocks._core", frozen)]
pub struct PyRecordLines {
    start: f64,
    digests: KeyedDigests,
    numbers: Mutex<Numbers>,
}

/// The numbers by which a file names requests, sessions and adapters.
#[derive(Default)]
struct Numbers {
    next: u64,
    sessions: FxHashMap<String, usize>,
    adapters: FxHashMap<String, usize>,
}

#[pymethods]
impl PyRecordLines {
    #[new]
    fn new(key: &[u8], start: f64) -> PyResult<Self> {
        let key = key.try_into().map_err(|_| {
            invalid_argument(format!("a key has {KEY_BYTES} bytes, and this one {}", key.len()))
        })?;
        let digests = KeyedDigests::new(key);
        Ok(Self { start, digests, numbers: Mutex::default() })
    }

    /// The lines of finished requests, each with its end.
    fn encode<'py>(&self, requests: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyBytes>> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = Vec::with_capacity(requests.len() * LINE_BYTES);
        let mut hashes = Hashes::default();
        for request in requests {
            self.write(request.cast::<PyTuple>()?, &mut numbers, &mut hashes, &mut text)?;
        }
        Ok(PyBytes::new(requests.py(), &text))
    }
}

impl PyRecordLines {
    /// Appends a line; a field that has the default of its reader is left out.
    fn write(
        &self,
        request: &Bound<'_, PyTuple>,
        numbers: &mut Numbers,
        hashes: &mut Hashes,
        text: &mut Vec<u8>,
    ) -> PyResult<()> {
        let arrival: f64 = request.get_item(0)?.extract()?;
        let count = |place: usize| request.get_item(place)?.extract::<u64>();
        put(text, "{\"hybrid_blocks_request\":", numbers.next);
        numbers.next += 1;
        put_seconds(text, ",\"arrival\":", arrival - self.start);
        put(text, ",\"block_tokens\":", count(1)?);
        put(text, ",\"prompt_tokens\":", count(2)?);
        put(text, ",\"output_tokens\":", count(3)?);
        text.extend_from_slice(b",\"blocks\":\"");
        let blocks = request.get_item(5)?;
        if let Ok(blocks) = blocks.cast::<PyList>() {
            // vLLM's hashes of most engines; a list is read without an iterator.
            for place in 0..blocks.len() {
                let hash = blocks.get_item(place)?;
                self.digests.push(hash.cast::<PyBytes>()?.as_bytes(), hashes, text);
            }
        } else {
            for hash in blocks.try_iter()? {
                self.digests.push(hash?.cast::<PyBytes>()?.as_bytes(), hashes, text);
            }
        }
        self.digests.finish(hashes, text);
        text.push(b'"');
        if let Some(found) = request.get_item(4)?.extract::<Option<u64>>()? {
            put(text, ",\"found_tokens\":", found);
        }
        for (place, field, names) in [
            (6, ",\"session\":", &mut numbers.sessions),
            (7, ",\"adapter\":", &mut numbers.adapters),
        ] {
            let name = request.get_item(place)?;
            if !name.is_none() {
                // A client may send text that no UTF-8 has.
                let name = name.cast::<PyString>()?.to_string_lossy().into_owned();
                let next = names.len();
                put(text, field, *names.entry(name).or_insert(next) as u64);
            }
        }
        let priority: i64 = request.get_item(8)?.extract()?;
        if priority != 0 {
            text.extend_from_slice(b",\"priority\":");
            if priority < 0 {
                text.push(b'-');
            }
            put(text, "", priority.unsigned_abs());
        }
        if request.get_item(9)?.extract()? {
            text.extend_from_slice(b",\"aborted\":true");
        }
        for (place, field) in
            [(10, ",\"scheduled\":"), (11, ",\"first_token\":"), (12, ",\"finished\":")]
        {
            if let Some(moment) = request.get_item(place)?.extract::<Option<f64>>()? {
                put_seconds(text, field, moment - arrival);
            }
        }
        text.extend_from_slice(b"}\n");
        Ok(())
    }
}

/// Appends a number, without the cost of general formatting.
fn put(text: &mut Vec<u8>, field: &str, value: u64) {
    text.extend_from_slice(field.as_bytes());
    let mut digits = [0; 20];
    let mut begin = digits.len();
    let mut rest = value;
    while rest > 0 || begin == digits.len() {
        begin -= 1;
        digits[begin] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.extend_from_slice(&digits[begin..]);
}

/// Appends a time with up to six digits; clocks of two processes may disagree by a little.
fn put_seconds(text: &mut Vec<u8>, field: &str, seconds: f64) {
    #[expect(clippy::cast_sign_loss, reason = "no number here is below 0")]
    let micros = (seconds.max(0.0) * MICROSECONDS).round() as u64;
    put(text, field, micros / SIX_DIGITS);
    let mut rest = micros % SIX_DIGITS;
    if rest == 0 {
        return;
    }
    let mut digits = [b'.'; 7];
    let mut end = 1;
    for place in (1..digits.len()).rev() {
        digits[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
        end = end.max(if digits[place] == b'0' { 1 } else { place + 1 });
    }
    text.extend_from_slice(&digits[..end]);
}
