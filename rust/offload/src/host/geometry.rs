//! [`HostGeometry`]: how a region of host memory is cut into slabs.

use std::ops::Range;

use hybrid_blocks::{BlockId, PoolId};

use crate::error::Error;

/// Slots start at multiples of this, so that they can be written to disk without a copy.
const SLOT_ALIGNMENT: u64 = 4096;
/// How many slabs' worth of slots without content a pool has, about, while units come and go.
const PARTIAL: f64 = 2.0;
/// Slabs that are tried at most, and at least, where the region is large enough.
const SLABS: Range<u64> = 128..8192;

/// Slabs of equal size over a region, and slots of each pool's own size in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGeometry {
    slab_bytes: u64,
    num_slabs: u32,
    slot_bytes: Vec<u64>,
    pool_of: Vec<Option<PoolId>>,
}

impl HostGeometry {
    /// A geometry for groups whose chunks have `chunk_bytes` each; 0 for groups that are not stored.
    /// Groups with chunks of one size share a pool.
    ///
    /// Slabs hold whole slots of one pool. The slab size is the one that wastes the smallest
    /// share: the rest of a slab in the worst pool, the rest of the region, and for each pool slabs that
    /// are not full.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if nothing is stored or the region has no room for two slots of each pool.
    pub fn new(region_bytes: u64, chunk_bytes: &[u64]) -> Result<Self, Error> {
        let mut slot_bytes: Vec<u64> = Vec::new();
        let pool_of: Vec<_> = chunk_bytes
            .iter()
            .map(|&bytes| {
                let bytes = bytes.checked_next_multiple_of(SLOT_ALIGNMENT).filter(|&it| it > 0)?;
                let known = slot_bytes.iter().position(|&other| other == bytes);
                Some(PoolId(known.unwrap_or_else(|| {
                    slot_bytes.push(bytes);
                    slot_bytes.len() - 1
                }) as u32))
            })
            .collect();
        let largest = slot_bytes.iter().copied().max().ok_or_else(|| {
            Error::InvalidConfig("no group has chunks to keep in host memory".to_owned())
        })?;
        let needed = largest * 2 * slot_bytes.len() as u64;
        if region_bytes < needed {
            return Err(Error::InvalidConfig(format!(
                "{region_bytes} bytes of host memory; at least {needed} are needed for two chunks \
                 of {largest} bytes in each of {} pools",
                slot_bytes.len()
            )));
        }
        let most = (region_bytes / SLABS.start).max(largest);
        let least = (region_bytes / SLABS.end).max(largest);
        let sizes = slot_bytes.iter().flat_map(|&slot| {
            let counts = least.div_ceil(slot)..=most / slot;
            // Wide ranges of small slots are thinned: neighbours waste nearly the same.
            let step = ((counts.end().saturating_sub(*counts.start())) / 4096 + 1) as usize;
            counts.step_by(step).map(move |count| count * slot)
        });
        let waste = |&size: &u64| {
            let rest = slot_bytes.iter().map(|slot| (size % slot) as f64 / size as f64);
            let tail = (region_bytes % size) as f64 / region_bytes as f64;
            let partial = slot_bytes.len() as f64 * size as f64 * PARTIAL / region_bytes as f64;
            rest.fold(0.0, f64::max) + tail + partial
        };
        let slab_bytes = sizes
            .chain([largest])
            .filter(|&size| region_bytes / size >= 2)
            .min_by(|a, b| waste(a).total_cmp(&waste(b)))
            .unwrap_or(largest);
        let num_slabs = u32::try_from(region_bytes / slab_bytes).map_err(|_| {
            Error::InvalidConfig(format!("{region_bytes} bytes are too many slabs of {slab_bytes}"))
        })?;
        Ok(Self { slab_bytes, num_slabs, slot_bytes, pool_of })
    }

    /// Bytes a slab.
    pub fn slab_bytes(&self) -> u64 {
        self.slab_bytes
    }

    /// Slabs of the region.
    pub fn num_slabs(&self) -> u32 {
        self.num_slabs
    }

    /// Bytes of the region that slabs cover.
    pub fn num_bytes(&self) -> u64 {
        self.slab_bytes * u64::from(self.num_slabs)
    }

    /// Slots a slab, by pool.
    pub fn slots_per_slab(&self) -> Vec<u32> {
        self.slot_bytes.iter().map(|slot| (self.slab_bytes / slot) as u32).collect()
    }

    /// Whether all slabs together have these numbers of slots, by pool.
    pub(super) fn could_hold(&self, num_slots: &[u64]) -> bool {
        let slots = self.slot_bytes.iter().zip(num_slots);
        let num_slabs: u64 = slots.map(|(bytes, n)| n.div_ceil(self.slab_bytes / bytes)).sum();
        num_slabs <= u64::from(self.num_slabs)
    }

    /// The pool of a group, or `None` for a group that is not stored.
    pub fn pool_of(&self, group: usize) -> Option<PoolId> {
        self.pool_of.get(group).copied().flatten()
    }

    /// Bytes of a slot: those of a chunk, rounded up to whole pages.
    pub fn slot_bytes(&self, pool: PoolId) -> u64 {
        self.slot_bytes[pool.index()]
    }

    /// The bytes of a slot in the region. The store's slab 0 is the null block's and has no bytes here.
    pub fn bytes_of(&self, pool: PoolId, slot: BlockId) -> Range<u64> {
        let per_slab = (self.slab_bytes / self.slot_bytes[pool.index()]) as u32;
        let slab = u64::from(slot.0 / per_slab) - 1;
        let bytes = self.slot_bytes[pool.index()];
        let start = slab * self.slab_bytes + u64::from(slot.0 % per_slab) * bytes;
        start..start + bytes
    }
}
