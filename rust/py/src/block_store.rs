//! `BlockStore`: pools and prefix indexes without requests, for engines that keep their own.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

use hybrid_blocks::{
    self as core, BlockId, Digest, Error, EvictionOrder, GroupId, Key, PoolId, Store,
};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::batch::{BlockIds, Digests, optional_size, optional_sizes, size};
use hybrid_blocks_interop::Guarded;
use hybrid_blocks_interop::{core_error, integrity_error, invalid_argument};

/// Groups above this have no room in the prefix index.
const MAX_GROUP: u32 = u16::MAX as u32 - 1;

#[pyclass(frozen, module = "hybrid_blocks._core")]
pub(crate) struct BlockStore {
    store: Guarded<core::BlockStore>,
    num_ids: Box<[u32]>,
    digest_size: usize,
}

#[pymethods]
impl BlockStore {
    #[new]
    #[pyo3(signature = (num_blocks = None, *, num_slabs = None, blocks_per_slab = None, digest_size = 32))]
    fn new(
        #[pyo3(from_py_with = optional_size)] num_blocks: Option<u32>,
        #[pyo3(from_py_with = optional_size)] num_slabs: Option<u32>,
        #[pyo3(from_py_with = optional_sizes)] blocks_per_slab: Option<Vec<u32>>,
        #[pyo3(from_py_with = size)] digest_size: u32,
    ) -> PyResult<Self> {
        if !matches!(digest_size, 16 | 32) {
            return Err(invalid_argument(format_args!(
                "digest_size is 16 or 32 bytes, not {digest_size}"
            )));
        }
        let store = new_store(num_blocks, num_slabs, blocks_per_slab)?;
        Ok(Self {
            num_ids: (0..store.num_pools()).map(|p| store.pool(PoolId(p)).num_ids()).collect(),
            store: Guarded::new(store),
            digest_size: digest_size as usize,
        })
    }

    #[pyo3(signature = (num_blocks, *, pool = 0))]
    fn get_new<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = size)] num_blocks: u32,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let (pool, _) = self.pool(pool)?;
        let blocks = self.store.call(py, |store| {
            let mut blocks = Vec::new();
            store.allocate(pool, u64::from(num_blocks), &mut blocks).map(|()| blocks)
        })?;
        Ok(ids(py, &blocks))
    }

    #[pyo3(signature = (blocks, *, pool = 0))]
    fn touch(
        &self,
        py: Python<'_>,
        blocks: BlockIds<'_>,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<()> {
        let (pool, blocks) = self.blocks(pool, &blocks)?;
        self.store.call(py, |store| {
            for (done, block) in blocks.clone().enumerate() {
                if let Err(error) = store.touch(pool, block) {
                    // Only a block in a slab of another pool is refused, and it keeps no owner.
                    store.free(pool, blocks.take(done))?;
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    #[pyo3(signature = (blocks, *, pool = 0))]
    fn free(
        &self,
        py: Python<'_>,
        blocks: BlockIds<'_>,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<()> {
        let (pool, blocks) = self.blocks(pool, &blocks)?;
        self.store.call(py, |store| store.free(pool, blocks))
    }

    #[pyo3(signature = (block, digest, *, group = 0, num_tokens = 0, pool = 0))]
    fn insert_key(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = size)] block: u32,
        digest: &[u8],
        #[pyo3(from_py_with = size)] group: u32,
        #[pyo3(from_py_with = size)] num_tokens: u32,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<bool> {
        let (pool, num_ids) = self.pool(pool)?;
        let block = checked(block, num_ids)?;
        let key = self.key(digest, group)?;
        self.store.call(py, |store| {
            require_content(store, pool, block)?;
            Ok(store.insert_key(pool, block, &key, num_tokens))
        })
    }

    #[pyo3(signature = (digest, *, group = 0, pool = 0))]
    fn get(
        &self,
        py: Python<'_>,
        digest: &[u8],
        #[pyo3(from_py_with = size)] group: u32,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Option<u32>> {
        let (pool, _) = self.pool(pool)?;
        let key = self.key(digest, group)?;
        self.store.with(py, |store| store.get(pool, &key).map(|block| block.0))
    }

    #[pyo3(signature = (digests, *, group = 0, pool = 0))]
    fn match_prefix<'py>(
        &self,
        py: Python<'py>,
        digests: Digests<'py>,
        #[pyo3(from_py_with = size)] group: u32,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let (pool, _) = self.pool(pool)?;
        let bytes = digests.as_slice(self.digest_size)?;
        let group = group_id(group)?;
        let blocks: Vec<BlockId> = self.store.with(py, |store| {
            let keys = bytes.chunks_exact(self.digest_size).map(Digest::from_slice);
            keys.map_while(|digest| store.get(pool, &Key { digest: digest?, group })).collect()
        })?;
        Ok(ids(py, &blocks))
    }

    #[pyo3(signature = (blocks, *, pool = 0))]
    fn evict(
        &self,
        py: Python<'_>,
        blocks: BlockIds<'_>,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<()> {
        let (pool, blocks) = self.blocks(pool, &blocks)?;
        self.store.with(py, |store| blocks.for_each(|block| store.drop_keys(pool, block)))
    }

    fn take_evicted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys = self.store.with(py, |store| std::mem::take(store.evicted()))?;
        self.key_list(py, &keys)
    }

    #[pyo3(signature = (block, *, pool = 0))]
    fn keys<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = size)] block: u32,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Bound<'py, PyList>> {
        let (pool, num_ids) = self.pool(pool)?;
        let block = checked(block, num_ids)?;
        let keys: Vec<Key> = self.store.with(py, |store| {
            let index = store.prefix_index(pool);
            let first = index.first_key(block).map(|(key, _)| key);
            first.into_iter().chain(index.further_keys(block)).collect()
        })?;
        self.key_list(py, &keys)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.store.call(py, core::BlockStore::reset)
    }

    fn tick(&self, py: Python<'_>) -> PyResult<()> {
        self.store.with(py, core::BlockStore::tick)
    }

    #[pyo3(signature = (*, pool = 0))]
    fn free_order<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let (pool, _) = self.pool(pool)?;
        let blocks: Vec<_> = self.store.with(py, |store| store.free_order(pool))?;
        Ok(ids(py, &blocks))
    }

    #[pyo3(signature = (*, pool = 0))]
    fn ref_counts<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = size)] pool: u32,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let (pool, num_ids) = self.pool(pool)?;
        let counts: Vec<i32> = self.store.with(py, |store| {
            let pool = store.pool(pool);
            (0..num_ids).map(|block| pool.ref_count(BlockId(block)).cast_signed()).collect()
        })?;
        Ok(PyArray1::from_vec(py, counts))
    }

    #[pyo3(signature = (*, pool = 0))]
    fn num_free(&self, py: Python<'_>, #[pyo3(from_py_with = size)] pool: u32) -> PyResult<u64> {
        let (pool, _) = self.pool(pool)?;
        self.store.with(py, |store| store.num_available(pool))
    }

    #[pyo3(signature = (*, pool = 0))]
    fn num_keys(&self, py: Python<'_>, #[pyo3(from_py_with = size)] pool: u32) -> PyResult<usize> {
        let (pool, _) = self.pool(pool)?;
        self.store.with(py, |store| store.prefix_index(pool).len())
    }

    #[getter]
    fn num_pools(&self) -> usize {
        self.num_ids.len()
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.store.with(py, |store| store.memory_bytes())
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.store.with(py, |store| store.check_integrity())?.map_err(integrity_error)
    }
}

impl BlockStore {
    /// The pool and how many ids it has.
    fn pool(&self, pool: u32) -> PyResult<(PoolId, u32)> {
        match self.num_ids.get(pool as usize) {
            Some(&num_ids) => Ok((PoolId(pool), num_ids)),
            None => Err(invalid_argument(format_args!(
                "pool {pool} does not exist; there are {}",
                self.num_ids.len()
            ))),
        }
    }

    /// The pool, and the blocks, which are ids of it.
    fn blocks<'a>(
        &self,
        pool: u32,
        blocks: &'a BlockIds<'_>,
    ) -> PyResult<(PoolId, impl Iterator<Item = BlockId> + Clone + use<'a>)> {
        let ((pool, num_ids), blocks) = (self.pool(pool)?, blocks.as_slice()?);
        blocks.iter().try_for_each(|&block| checked(block, num_ids).map(drop))?;
        Ok((pool, blocks.iter().copied().map(BlockId)))
    }

    /// Keys as Python sees them: digest and group.
    fn key_list<'py>(&self, py: Python<'py>, keys: &[Key]) -> PyResult<Bound<'py, PyList>> {
        let bytes = |key: &Key| PyBytes::new(py, &key.digest.as_bytes()[..self.digest_size]);
        PyList::new(py, keys.iter().map(|key| (bytes(key), key.group.0)))
    }

    fn key(&self, digest: &[u8], group: u32) -> PyResult<Key> {
        let digest = Digest::from_slice(digest).filter(|_| digest.len() == self.digest_size);
        let digest = digest.ok_or_else(|| {
            invalid_argument(format_args!("a digest has {} bytes here", self.digest_size))
        })?;
        Ok(Key { digest, group: group_id(group)? })
    }
}

/// The store that a constructor's arguments describe.
pub(crate) fn new_store(
    num_blocks: Option<u32>,
    num_slabs: Option<u32>,
    blocks_per_slab: Option<Vec<u32>>,
) -> PyResult<core::BlockStore> {
    match (num_blocks, num_slabs, blocks_per_slab) {
        (Some(num_blocks), None, None) => core::BlockStore::fixed(num_blocks),
        (None, Some(num_slabs), Some(blocks)) => core::BlockStore::shared(num_slabs, &blocks),
        _ => {
            return Err(invalid_argument(
                "give either num_blocks, or num_slabs and blocks_per_slab",
            ));
        }
    }
    .map_err(core_error)
}

fn checked(block: u32, num_blocks: u32) -> PyResult<BlockId> {
    let block = BlockId(block);
    if block.is_null() || block.0 >= num_blocks {
        return Err(core_error(Error::ForeignBlock { block, num_blocks }));
    }
    Ok(block)
}

/// A block without owner and content has nothing that could be found.
fn require_content(store: &core::BlockStore, pool: PoolId, block: BlockId) -> Result<(), Error> {
    let blocks = store.pool(pool);
    if blocks.ref_count(block) > 0 || blocks.is_hashed(block) {
        Ok(())
    } else {
        Err(Error::NotLive { block })
    }
}

fn ids<'py>(py: Python<'py>, blocks: &[BlockId]) -> Bound<'py, PyArray1<i32>> {
    PyArray1::from_iter(py, blocks.iter().map(|block| block.0.cast_signed()))
}

fn group_id(group: u32) -> PyResult<GroupId> {
    if group > MAX_GROUP {
        return Err(invalid_argument(format_args!("group {group} is above {MAX_GROUP}")));
    }
    Ok(GroupId(group))
}
