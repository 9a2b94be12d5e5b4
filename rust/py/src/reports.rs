//! Reports of managers on their blocks, as Python objects.

use hybrid_blocks::hash::Algorithm;
use hybrid_blocks::{
    BlockCopy, BlockStore, CacheEvent, Error, HitLimit, PoolId, PrefillCheckpoint, Stats, Store,
};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

/// Changes of the prefix cache, as tuples.
pub(crate) fn events_list<'py>(
    py: Python<'py>,
    algorithm: Algorithm,
    events: &[CacheEvent],
) -> PyResult<Bound<'py, PyList>> {
    let bytes = |digest| PyBytes::new(py, algorithm.digest_bytes(digest));
    let list = PyList::empty(py);
    for event in events {
        let tuple = match event {
            CacheEvent::Stored {
                handle, group, first_block, block_size, parent, digests, ..
            } => {
                let digests = PyList::new(py, digests.iter().map(bytes))?;
                let parent = parent.as_ref().map(bytes);
                ("stored", *handle, group.0, *first_block, *block_size, parent, digests)
                    .into_pyobject(py)?
            }
            CacheEvent::StoredTail { handle, group, block_size, num_tokens, digest } => {
                let digests = PyList::new(py, [bytes(digest)])?;
                let block = num_tokens / block_size - 1;
                ("stored", *handle, group.0, block, *block_size, None::<()>, digests)
                    .into_pyobject(py)?
            }
            CacheEvent::Removed(key) => {
                ("removed", bytes(&key.digest), key.group.0).into_pyobject(py)?
            }
            CacheEvent::Cleared => PyTuple::new(py, ["cleared"])?,
            _ => continue,
        };
        list.append(tuple)?;
    }
    Ok(list)
}

/// Counters by name.
pub(crate) fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("queries", stats.queries)?;
    dict.set_item("hits", stats.hits)?;
    dict.set_item("preemptions", stats.preemptions)?;
    dict.set_item("checkpoints", stats.checkpoints)?;
    dict.set_item("forks", stats.forks)?;
    dict.set_item("shortened", stats.shortened)?;
    for (limit, count) in HitLimit::ALL.iter().zip(stats.limits) {
        dict.set_item(format!("limit_{}", limit.name()), count)?;
    }
    Ok(dict)
}

/// Copies as an int32 array `[n, 3]` of group, source and destination; `[n, 5]` `with_pools`, which are those of source
/// and destination.
pub(crate) fn copies_array<'py>(
    py: Python<'py>,
    copies: &[BlockCopy],
    with_pools: bool,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    if with_pools {
        let row = |it: &BlockCopy| [it.group.0, it.src.0, it.dst.0, it.src_pool.0, it.dst_pool.0];
        return rows_array(py, copies.iter().map(row));
    }
    rows_array(py, copies.iter().map(|it| [it.group.0, it.src.0, it.dst.0]))
}

/// Prefill checkpoints as an int64 array `[n, 5]` of handle, group, position, source and destination.
pub(crate) fn prefill_checkpoints_array<'py>(
    py: Python<'py>,
    checkpoints: &[PrefillCheckpoint],
) -> PyResult<Bound<'py, PyArray2<i64>>> {
    let row = |it: &PrefillCheckpoint| {
        let ids = [it.group.0, it.position, it.src.0, it.dst.0].map(i64::from);
        [[it.handle.cast_signed()].as_slice(), &ids].concat()
    };
    let flat: Vec<i64> = checkpoints.iter().flat_map(row).collect();
    PyArray1::from_vec(py, flat).reshape([checkpoints.len(), 5])
}

/// Rows of ids as an int32 array `[n, N]`.
fn rows_array<const N: usize>(
    py: Python<'_>,
    rows: impl ExactSizeIterator<Item = [u32; N]>,
) -> PyResult<Bound<'_, PyArray2<i32>>> {
    let num_rows = rows.len();
    let flat: Vec<i32> = rows.flatten().map(u32::cast_signed).collect();
    PyArray1::from_vec(py, flat).reshape([num_rows, N])
}

/// Blocks without an owner; whole slabs where several pools share an arena.
pub(crate) fn num_free_blocks(store: &BlockStore) -> u64 {
    if store.is_slabbed() { store.num_whole_slabs() } else { store.num_available(PoolId(0)) }
}

/// Blocks of a pool with an owner.
pub(crate) fn num_live_blocks(store: &BlockStore, pool: u32) -> Result<u32, Error> {
    if pool < store.num_pools() {
        return Ok(store.pool(PoolId(pool)).num_live());
    }
    Err(Error::InvalidArgument(format!("pool {pool} of {}", store.num_pools())))
}
