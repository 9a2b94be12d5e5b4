//! Extra keys, as Python gives them.

use hybrid_blocks::hash::Value;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use rustc_hash::FxHashMap;

use crate::error::invalid_argument;

/// Tuples nested deeper than this are left to Python.
const MAX_DEPTH: usize = 16;

/// The extra keys of one block.
pub(crate) enum ExtraKeys<'py> {
    /// The core can write them as Python would.
    Plain(Option<Value>),
    /// Only Python can: a type that is not built in, an alias of the parent digest, ...
    Opaque(Bound<'py, PyAny>),
}

/// Reads extra keys and keeps their identities: one object becomes one shared value.
///
/// The objects must stay alive as long as the reader.
pub(crate) struct ExtraKeysReader {
    seen: FxHashMap<usize, Value>,
    reserved: Vec<usize>,
}

impl ExtraKeysReader {
    /// `reserved` are the objects that are hashed beside the extra keys; an alias of one of them is
    /// beyond the core, which knows their content only.
    pub(crate) fn new(reserved: &[&Bound<'_, PyAny>]) -> Self {
        let reserved = reserved.iter().map(|object| address(object)).collect();
        Self { seen: FxHashMap::default(), reserved }
    }

    /// The extra keys of several blocks, a list or tuple.
    pub(crate) fn read_all<'py>(
        &mut self,
        blocks: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<ExtraKeys<'py>>> {
        if let Ok(list) = blocks.cast::<PyList>() {
            Ok(list.iter().map(|keys| self.read(&keys)).collect())
        } else if let Ok(tuple) = blocks.cast::<PyTuple>() {
            Ok(tuple.iter().map(|keys| self.read(&keys)).collect())
        } else {
            let kind = blocks.get_type();
            Err(invalid_argument(format_args!(
                "extra_keys are a list or tuple with one entry for each new block, not {kind}"
            )))
        }
    }

    /// The extra keys of one block.
    pub(crate) fn read<'py>(&mut self, keys: &Bound<'py, PyAny>) -> ExtraKeys<'py> {
        if keys.is_none() {
            return ExtraKeys::Plain(None);
        }
        match self.value(keys, 0) {
            Some(value) => ExtraKeys::Plain(Some(value)),
            None => ExtraKeys::Opaque(keys.clone()),
        }
    }

    /// The value of an object, or `None` where only Python knows how to serialize it.
    fn value(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> Option<Value> {
        if object.is_none() {
            return Some(Value::None);
        }
        if object.is_exact_instance_of::<PyBool>() {
            return object.extract().ok().map(Value::Bool);
        }
        if object.is_exact_instance_of::<PyInt>() {
            return object.extract().ok().map(Value::Int);
        }
        if object.is_exact_instance_of::<PyFloat>() {
            return object.extract().ok().map(Value::Float);
        }
        let address = address(object);
        if let Some(value) = self.seen.get(&address) {
            return Some(value.clone());
        }
        if depth == MAX_DEPTH || self.reserved.contains(&address) {
            return None;
        }
        let value = if let Ok(text) = object.cast_exact::<PyString>() {
            Value::str(text.to_str().ok()?)
        } else if let Ok(bytes) = object.cast_exact::<PyBytes>() {
            Value::bytes(bytes.as_bytes())
        } else if let Ok(items) = object.cast_exact::<PyTuple>() {
            let items = items.iter_borrowed().map(|item| self.value(&item, depth + 1));
            Value::Tuple(items.collect::<Option<_>>()?)
        } else {
            return None;
        };
        self.seen.insert(address, value.clone());
        Some(value)
    }
}

fn address(object: &Bound<'_, PyAny>) -> usize {
    object.as_ptr().addr()
}
