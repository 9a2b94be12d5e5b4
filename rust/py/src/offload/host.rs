//! `HostCache`: which chunk lies where in host memory, and look-ups over all tiers.

use std::sync::atomic::{AtomicUsize, Ordering};

use hybrid_blocks::{GroupKind, Key, PoolId};
use hybrid_blocks_interop::{Guarded, HybridBlocksError, invalid_argument};
use hybrid_blocks_offload::host::{self, Presence, RequestId};
use hybrid_blocks_offload::plan::{Costs, Load, OffloadGroup, ReadCost, Tier};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::disk::DiskStore;
use super::errors::offload_error;
use super::keys::{OffloadKey, check_groups, names, paired, to_bytes};
use super::objects::ObjectStore;
use super::request_keys::RequestKeys;

/// Host memory in a plan, whose tiers are numbered in order of preference.
const HOST: u8 = 0;

/// The result of one look-up. Keys become Python's where they are asked for.
#[pyclass(frozen, module = "hybrid_blocks._core.offload")]
pub(crate) struct Lookup {
    #[pyo3(get)]
    num_tokens: u32,
    #[pyo3(get)]
    num_passed_by: u32,
    #[pyo3(get)]
    is_pending: bool,
    digest_size: usize,
    on_host: Chunks,
    on_disk: Chunks,
    in_objects: Chunks,
}

/// Keys, and the tokens that each stands for.
type Chunks = Vec<(Key, u32)>;

#[pymethods]
impl Lookup {
    #[getter]
    fn on_host<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.names(py, &self.on_host)
    }

    #[getter]
    fn on_disk<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.names(py, &self.on_disk)
    }

    #[getter]
    fn on_disk_tokens(&self) -> Vec<u32> {
        self.on_disk.iter().map(|&(_, num_tokens)| num_tokens).collect()
    }

    #[getter]
    fn in_objects<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.names(py, &self.in_objects)
    }

    #[getter]
    fn in_objects_tokens(&self) -> Vec<u32> {
        self.in_objects.iter().map(|&(_, num_tokens)| num_tokens).collect()
    }
}

impl Lookup {
    fn names<'py>(&self, py: Python<'py>, chunks: &Chunks) -> Vec<Bound<'py, PyBytes>> {
        chunks.iter().map(|(key, _)| to_bytes(py, key, self.digest_size)).collect()
    }
}

/// Seconds of latency and a byte.
fn read_cost(cost: Option<(f64, f64)>) -> Option<ReadCost> {
    cost.map(|(latency, per_byte)| ReadCost { latency, per_byte })
}

fn number_of(presence: Presence) -> u8 {
    match presence {
        Presence::Absent => 0,
        Presence::Pending => 1,
        Presence::Ready => 2,
    }
}

#[pyclass(frozen, module = "hybrid_blocks._core.offload")]
pub(crate) struct HostCache {
    cache: Guarded<host::HostCache>,
    hash_block_size: u32,
    num_groups: usize,
    region_bytes: u64,
    digest_size: AtomicUsize,
}

impl HostCache {
    /// Tokens a hash block, and the number of groups.
    pub(super) fn cut(&self) -> (u32, usize) {
        (self.hash_block_size, self.num_groups)
    }

    fn to_bytes(&self, py: Python<'_>, key: &Key) -> Py<PyBytes> {
        to_bytes(py, key, self.digest_size.load(Ordering::Relaxed)).unbind()
    }
}

#[pymethods]
impl HostCache {
    #[new]
    #[pyo3(signature = (
        num_bytes, *, hash_block_size, chunk_tokens, chunk_bytes, windows, drafters = vec![],
        is_written_back = false
    ))]
    fn new(
        num_bytes: u64,
        hash_block_size: u32,
        chunk_tokens: Vec<u32>,
        chunk_bytes: Vec<u64>,
        windows: Vec<Option<u32>>,
        drafters: Vec<usize>,
        is_written_back: bool,
    ) -> PyResult<Self> {
        if chunk_tokens.len() != chunk_bytes.len() || chunk_tokens.len() != windows.len() {
            return Err(invalid_argument(format_args!(
                "{} chunk_tokens, {} chunk_bytes and {} windows; give one of each a group",
                chunk_tokens.len(),
                chunk_bytes.len(),
                windows.len()
            )));
        }
        let group =
            |(number, ((&tokens, &bytes), &window)): (usize, ((&u32, &u64), &Option<u32>))| {
                OffloadGroup {
                    kind: match window {
                        None => GroupKind::Full,
                        // A look-up treats a group as a state if it needs only the last chunk.
                        Some(0..=1) => GroupKind::State { slots: 1 },
                        Some(chunks) => GroupKind::sliding_window(chunks.saturating_mul(tokens)),
                    },
                    chunk_tokens: tokens,
                    chunk_bytes: bytes,
                    use_eagle: drafters.contains(&number),
                }
            };
        let groups: Vec<_> =
            chunk_tokens.iter().zip(&chunk_bytes).zip(&windows).enumerate().map(group).collect();
        let num_groups = groups.len();
        let cache =
            host::HostCache::new(num_bytes, &groups, hash_block_size).map_err(offload_error)?;
        let cache = if is_written_back { cache.written_back() } else { cache };
        Ok(Self {
            region_bytes: cache.tier().geometry().num_bytes(),
            cache: Guarded::new(cache),
            hash_block_size,
            num_groups,
            digest_size: AtomicUsize::new(32),
        })
    }

    #[getter]
    fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    #[getter]
    fn num_units(&self, py: Python<'_>) -> PyResult<usize> {
        self.cache.with(py, |cache| cache.tier().num_units())
    }

    #[getter]
    fn num_pending(&self, py: Python<'_>) -> PyResult<usize> {
        self.cache.with(py, |cache| cache.num_pending())
    }

    #[getter]
    fn pending_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.cache.with(py, |cache| cache.pending_bytes())
    }

    #[getter]
    fn pinned_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.cache.with(py, |cache| cache.pinned_bytes())
    }

    #[getter]
    fn pinned_chunk_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.cache.with(py, |cache| cache.pinned_chunk_bytes())
    }

    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        self.cache.with(py, |cache| cache.version())
    }

    #[getter]
    fn num_releases(&self, py: Python<'_>) -> PyResult<u64> {
        self.cache.with(py, |cache| cache.num_releases())
    }

    #[getter]
    fn live_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.cache.with(py, |cache| cache.tier().num_live_bytes())
    }

    #[getter]
    fn held_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.cache.with(py, |cache| {
            let pools = cache.tier().geometry().slots_per_slab().len() as u32;
            (0..pools).map(|pool| cache.held_bytes(PoolId(pool))).sum()
        })
    }

    /// 0 absent, 1 on its way, 2 ready.
    fn presence(&self, py: Python<'_>, key: OffloadKey) -> PyResult<u8> {
        self.cache.with(py, |cache| number_of(cache.presence(&key.key)))
    }

    /// A byte for each key, as above.
    fn presences<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<OffloadKey>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let of = |cache: &mut host::HostCache| {
            keys.iter().map(|it| number_of(cache.presence(&it.key))).collect::<Vec<_>>()
        };
        Ok(PyBytes::new(py, &self.cache.with(py, of)?))
    }

    #[pyo3(signature = (
        keys, *, num_computed = 0, limit = None, disk = None, objects = None, disk_cost = None, objects_cost = None,
        token_cost = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "named ones, in Python")]
    fn lookup(
        &self,
        py: Python<'_>,
        keys: &RequestKeys,
        num_computed: u32,
        limit: Option<u32>,
        disk: Option<&DiskStore>,
        objects: Option<&ObjectStore>,
        disk_cost: Option<(f64, f64)>,
        objects_cost: Option<(f64, f64)>,
        token_cost: Option<f64>,
    ) -> PyResult<Lookup> {
        let limit = limit.unwrap_or(u32::MAX);
        // Chunks in host memory need no read.
        let mut reads = vec![Some(ReadCost::default())];
        reads.extend(disk.map(|_| read_cost(disk_cost)));
        reads.extend(objects.map(|_| read_cost(objects_cost)));
        let costs = Costs { reads: &reads, per_token: token_cost };
        let disk_tier = disk.map(|it| it.tier_attached(py));
        let object_tier = objects.map(|it| it.tier_attached(py));
        let below_disk = HOST + 1 + u8::from(disk.is_some());
        keys.with(py, |known| {
            self.cache.with(py, |cache| {
                let mut tiers: Vec<&dyn Tier> = vec![cache];
                tiers.extend(disk_tier.as_deref().map(|tier| tier as &dyn Tier));
                tiers.extend(object_tier.as_deref().map(|tier| tier as &dyn Tier));
                let digests = &known.digests;
                let plan =
                    cache.planner().plan_soonest(&tiers, &costs, digests, num_computed, limit);
                let chunk_tokens = cache.chunk_tokens();
                let in_tier = |tier: Option<u8>| {
                    let loads = plan.loads.iter().flatten().filter(|it| Some(it.tier) == tier);
                    let tokens = |it: &Load| (it.chunk + 1) * chunk_tokens[it.key.group.index()];
                    loads.map(|load| (load.key, tokens(load))).collect()
                };
                Lookup {
                    num_tokens: plan.num_tokens,
                    num_passed_by: plan.num_passed_by,
                    is_pending: cache.is_pending(&plan, HOST),
                    digest_size: known.digest_size,
                    on_host: in_tier(Some(HOST)),
                    on_disk: in_tier(disk.map(|_| HOST + 1)),
                    in_objects: in_tier(objects.map(|_| below_disk)),
                }
            })
        })?
    }

    fn open_request(&self, py: Python<'_>, keys: &RequestKeys) -> PyResult<u64> {
        keys.with(py, |known| self.cache.with(py, |cache| cache.open_request(&known.chunks).0))?
    }

    fn close_request(&self, py: Python<'_>, request: u64) -> PyResult<()> {
        self.cache.with(py, |cache| cache.close_request(RequestId(request)))
    }

    #[allow(clippy::type_complexity, reason = "one pair, used once")]
    fn begin_store<'py>(
        &self,
        py: Python<'py>,
        request: u64,
        keys: Vec<OffloadKey>,
        tokens: Vec<u32>,
    ) -> PyResult<Option<(Vec<Py<PyBytes>>, Bound<'py, PyArray1<i64>>)>> {
        check_groups(&keys, self.num_groups)?;
        let chunks = paired(&keys, &tokens)?;
        if let Some(key) = keys.first() {
            self.digest_size.store(key.digest_size, Ordering::Relaxed);
        }
        let placements =
            self.cache.with(py, |cache| cache.begin_store(RequestId(request), &chunks))?;
        Ok(placements.map(|placements| {
            let stored = placements.iter().map(|it| self.to_bytes(py, &it.key)).collect();
            let offsets = placements.iter().map(|it| it.bytes.start.cast_signed());
            (stored, PyArray1::from_iter(py, offsets))
        }))
    }

    #[pyo3(signature = (keys, success = true))]
    fn complete_store(
        &self,
        py: Python<'_>,
        keys: Vec<OffloadKey>,
        success: bool,
    ) -> PyResult<Vec<Py<PyBytes>>> {
        let keys = names(&keys);
        let ended = self.cache.with(py, |cache| cache.complete_store(&keys, success))?;
        Ok(ended.iter().map(|key| self.to_bytes(py, key)).collect())
    }

    fn begin_load<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<OffloadKey>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let keys = names(&keys);
        let bytes = self.cache.with(py, |cache| cache.begin_load(&keys))?.ok_or_else(|| {
            HybridBlocksError::new_err(format!(
                "one of {} chunks to load is not in host memory any more; look up again",
                keys.len()
            ))
        })?;
        Ok(PyArray1::from_iter(py, bytes.iter().map(|it| it.start.cast_signed())))
    }

    fn complete_load(&self, py: Python<'_>, keys: Vec<OffloadKey>) -> PyResult<()> {
        let keys = names(&keys);
        self.cache.with(py, |cache| cache.complete_load(&keys))
    }

    #[pyo3(signature = (keys, *, request = None))]
    fn touch(&self, py: Python<'_>, keys: Vec<OffloadKey>, request: Option<u64>) -> PyResult<()> {
        let keys = names(&keys);
        self.cache.with(py, |cache| cache.touch(&keys, request.map(RequestId)))
    }

    fn take_evicted(&self, py: Python<'_>) -> PyResult<Vec<Py<PyBytes>>> {
        let keys = self.cache.with(py, host::HostCache::take_evicted)?;
        Ok(keys.iter().map(|key| self.to_bytes(py, key)).collect())
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.cache.with(py, host::HostCache::reset)?.map_err(offload_error)
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.cache
            .with(py, |cache| cache.tier().check_integrity())?
            .map_err(hybrid_blocks_interop::integrity_error)
    }
}
