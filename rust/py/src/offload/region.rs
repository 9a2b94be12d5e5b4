//! `ChunkRegion`: host memory in which chunks lie, handed over once for all transfers.
//!
//! This is the crate's only module with unsafe code. Views of single chunks would have to be told apart from all
//! others at each transfer. Instead the caller answers for what no check in one process can see, as the
//! region is shared with other processes and devices: it keeps the slots of a transfer from any other use.
#![allow(unsafe_code)]

use std::ops::Range;
use std::slice;

use hybrid_blocks_interop::invalid_argument;
use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::keys::OffloadKey;

#[pyclass(frozen, module = "hybrid_blocks._core.offload")]
pub(crate) struct ChunkRegion {
    address: usize,
    num_bytes: usize,
    /// Bytes of a chunk by group.
    chunk_bytes: Vec<usize>,
    /// Keeps the memory.
    _array: Py<PyArray1<u8>>,
}

#[pymethods]
impl ChunkRegion {
    #[new]
    fn new(array: Bound<'_, PyArray1<u8>>, chunk_bytes: Vec<usize>) -> PyResult<Self> {
        if !array.is_contiguous() || array.try_readwrite().is_err() {
            return Err(invalid_argument(format_args!(
                "a region must be contiguous memory that can be written"
            )));
        }
        Ok(Self {
            address: array.data() as usize,
            num_bytes: array.len(),
            chunk_bytes,
            _array: array.unbind(),
        })
    }
}

impl ChunkRegion {
    /// Where chunks lie. Refuses what is not in the region.
    fn places(&self, keys: &[OffloadKey], offsets: &[usize]) -> PyResult<Vec<Range<usize>>> {
        if keys.len() != offsets.len() {
            return Err(invalid_argument(format_args!(
                "{} keys with {} offsets; give one offset a key",
                keys.len(),
                offsets.len()
            )));
        }
        let place = |(key, &offset): (&OffloadKey, &usize)| {
            let len = self.chunk_bytes.get(key.key.group.index()).copied().unwrap_or(0);
            let end = offset.checked_add(len).filter(|&end| len > 0 && end <= self.num_bytes);
            end.map(|end| offset..end).ok_or_else(|| {
                invalid_argument(format_args!(
                    "a chunk of group {} at byte {offset} of a region of {} bytes",
                    key.key.group, self.num_bytes
                ))
            })
        };
        keys.iter().zip(offsets).map(place).collect()
    }

    /// The chunks at these places, to be read while the caller keeps them from being written.
    pub(super) fn chunks(&self, keys: &[OffloadKey], offsets: &[usize]) -> PyResult<Vec<&[u8]>> {
        let places = self.places(keys, offsets)?.into_iter();
        // SAFETY: `places` lie in the array, which `self` keeps, and whose memory never moves, since nothing
        // resizes an array that has owners. That the bytes stay as they are meanwhile is the caller's part:
        // it pins the slots.
        Ok(places
            .map(|it| unsafe {
                slice::from_raw_parts((self.address as *const u8).add(it.start), it.len())
            })
            .collect())
    }

    /// The chunks at these places, to be filled while the caller keeps them from any other use.
    #[expect(
        clippy::mut_from_ref,
        reason = "the bytes are the array's, not this struct's; the places do not overlap"
    )]
    pub(super) fn buffers(
        &self,
        keys: &[OffloadKey],
        offsets: &[usize],
    ) -> PyResult<Vec<&mut [u8]>> {
        let places = self.places(keys, offsets)?;
        let mut in_order: Vec<_> = places.iter().collect();
        in_order.sort_unstable_by_key(|it| it.start);
        if let Some(two) = in_order.windows(2).find(|two| two[0].end > two[1].start) {
            return Err(invalid_argument(format_args!(
                "two chunks to fill at bytes {} and {}, which overlap",
                two[0].start, two[1].start
            )));
        }
        // SAFETY: as above, and no two of the places overlap. That nothing else uses them is the caller's
        // part: nobody finds a slot before it is filled.
        Ok(places
            .into_iter()
            .map(|it| unsafe {
                slice::from_raw_parts_mut((self.address as *mut u8).add(it.start), it.len())
            })
            .collect())
    }
}
