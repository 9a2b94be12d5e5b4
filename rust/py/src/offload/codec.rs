//! `ChunkCodec`: chunks as ranks hold them, to and from the form that the tiers below store.

use hybrid_blocks_interop::{caught, invalid_argument};
use hybrid_blocks_offload::layout::{self, GroupLayout, Part, PartKind, StateFormat};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use super::errors::offload_error;

/// Kind, rows, heads, bytes a head, and whether they are numbers of 32 bits.
type PartTuple = (String, u32, u32, u64, bool);

#[pyclass(frozen, module = "hybrid_blocks._core.offload")]
pub(crate) struct ChunkCodec {
    codec: layout::ChunkCodec,
    converts_states: bool,
}

fn panicked(message: &str) -> String {
    format!("the codec panicked: {message}")
}

fn part((kind, rows, num_heads, bytes_per_head, is_float32): PartTuple) -> PyResult<Part> {
    let kind = match kind.as_str() {
        "key_value" => PartKind::KeyValue,
        "replicated" => PartKind::Replicated,
        "convolution" => PartKind::Convolution,
        "recurrent" => PartKind::Recurrent,
        "opaque" => PartKind::Opaque,
        _ => {
            return Err(invalid_argument(format_args!(
                "a part of kind {kind:?}; kinds are key_value, replicated, convolution, recurrent \
                 and opaque"
            )));
        }
    };
    Ok(Part { kind, rows, num_heads, bytes_per_head, is_float32 })
}

#[pymethods]
impl ChunkCodec {
    #[new]
    #[pyo3(signature = (parts, *, tp_size, state_format = None))]
    fn new(parts: Vec<PartTuple>, tp_size: u32, state_format: Option<&str>) -> PyResult<Self> {
        let format = state_format
            .map(|name| {
                StateFormat::named(name).ok_or_else(|| {
                    invalid_argument(format_args!(
                        "state_format {name:?}; formats are bf16, fp8 and int8"
                    ))
                })
            })
            .transpose()?;
        let parts = parts.into_iter().map(part).collect::<PyResult<Vec<_>>>()?;
        let layout = GroupLayout::new(parts, format).map_err(offload_error)?;
        let converts_states = layout.parts().iter().any(|part| layout.format_of(part).is_some());
        Ok(Self { codec: layout.codec(tp_size).map_err(offload_error)?, converts_states })
    }

    #[getter]
    fn rank_bytes(&self) -> u64 {
        self.codec.rank_bytes()
    }

    #[getter]
    fn stored_bytes(&self) -> u64 {
        self.codec.stored_bytes()
    }

    #[getter]
    fn is_identity(&self) -> bool {
        self.codec.is_identity()
    }

    #[getter]
    fn converts_states(&self) -> bool {
        self.converts_states
    }

    fn encode(
        &self,
        py: Python<'_>,
        chunk: PyReadonlyArray1<'_, u8>,
        mut stored: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<bool> {
        let (chunk, stored) = (chunk.as_slice()?, stored.as_slice_mut()?);
        self.codec.check(chunk.len(), stored.len()).map_err(offload_error)?;
        py.detach(|| caught(|| self.codec.encode(chunk, stored), panicked))
    }

    fn decode(
        &self,
        py: Python<'_>,
        stored: PyReadonlyArray1<'_, u8>,
        mut chunk: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<()> {
        let (stored, chunk) = (stored.as_slice()?, chunk.as_slice_mut()?);
        self.codec.check(chunk.len(), stored.len()).map_err(offload_error)?;
        py.detach(|| caught(|| self.codec.decode(stored, chunk), panicked))
    }
}
