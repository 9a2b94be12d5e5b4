//! [`Blocks`]: all blocks of a pool as a sequence, and what vLLM's `BlockPool` does with many of them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hybrid_blocks::{BlockId, BlockStore, EvictionOrder, Key, PoolId, SlabStore, Store};
use pyo3::exceptions::{PyAssertionError, PyIndexError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyList, PySlice};

use super::block::Block;
use super::key;
use crate::engine::Engine;
use hybrid_blocks_interop::{core_error, integrity_error, invalid_argument};

/// Views are made in pages when first asked for, so that a pool without watchers holds none.
const PAGE: usize = 256;

type Page = Box<[Option<Py<Block>>]>;

/// The Python objects bound to the blocks: their pool, the ends of its free queue, vLLM's class.
#[derive(Default)]
struct Bindings {
    owner: Option<Py<PyAny>>,
    head: Option<Py<PyAny>>,
    tail: Option<Py<PyAny>>,
    class: Option<Py<PyAny>>,
    pages: Vec<Option<Page>>,
}

#[pyclass(frozen, sequence, weakref, module = "hybrid_blocks._core.vllm")]
pub(crate) struct Blocks {
    engine: Arc<Engine>,
    pool: PoolId,
    bindings: Mutex<Bindings>,
    len: u32,
    keep_evicted: bool,
    /// The value that was written to `num_free` from outside, less its value before.
    free_offset: AtomicI64,
}

impl Blocks {
    fn of_pool(engine: &Arc<Engine>, pool: PoolId, len: u32, keep_evicted: bool) -> Self {
        let pages = (len as usize).div_ceil(PAGE);
        let bindings = Bindings {
            pages: std::iter::repeat_with(|| None).take(pages).collect(),
            ..Bindings::default()
        };
        Self {
            engine: Arc::clone(engine),
            pool,
            bindings: Mutex::new(bindings),
            len,
            keep_evicted,
            free_offset: AtomicI64::new(0),
        }
    }

    pub(crate) fn pool(&self) -> PoolId {
        self.pool
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Blocks that count as free beyond those that are.
    fn free_offset(&self) -> i64 {
        self.free_offset.load(Ordering::Relaxed)
    }

    /// Blocks that are free and said not to be: vLLM lets the count be written.
    pub(crate) fn shortage(&self) -> i64 {
        -self.free_offset()
    }

    pub(super) fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let bindings = lock(py, &self.bindings).ok()?;
        bindings.owner.as_ref().map(|owner| owner.bind(py).clone())
    }

    pub(super) fn class<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let bindings = lock(py, &self.bindings).ok()?;
        bindings.class.as_ref().map(|class| class.bind(py).clone())
    }

    /// The one view of a block.
    fn view<'py>(slf: &Bound<'py, Self>, id: BlockId) -> PyResult<Bound<'py, Block>> {
        let (py, this) = (slf.py(), slf.get());
        let known = |bindings: &Bindings| {
            let page = bindings.pages[id.index() / PAGE].as_ref()?;
            page[id.index() % PAGE].as_ref().map(|view| view.bind(py).clone())
        };
        if let Some(view) = known(&*lock(py, &this.bindings)?) {
            return Ok(view);
        }
        let view = Bound::new(py, Block { blocks: slf.clone().unbind(), id })?;
        let mut bindings = lock(py, &this.bindings)?;
        if let Some(view) = known(&bindings) {
            return Ok(view);
        }
        let page = bindings.pages[id.index() / PAGE]
            .get_or_insert_with(|| std::iter::repeat_with(|| None).take(PAGE).collect());
        page[id.index() % PAGE] = Some(view.clone().unbind());
        Ok(view)
    }

    pub(crate) fn views<'py>(
        slf: &Bound<'py, Self>,
        ids: &[BlockId],
    ) -> PyResult<Bound<'py, PyList>> {
        let views = ids.iter().map(|&id| Self::view(slf, id)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(slf.py(), views)
    }

    /// The block before or after one in the free queue, or the queue's end; `None` for a block that
    /// is not in it.
    pub(super) fn neighbour<'py>(
        slf: &Bound<'py, Self>,
        block: Option<BlockId>,
        forward: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, this) = (slf.py(), slf.get());
        let found = this.engine.store(py, |store| {
            // Blocks in slabs wait in no queue.
            let BlockStore::Fixed(store) = store else { return None };
            let queue = store.queue();
            if block.is_some_and(|block| !store.pool(this.pool).is_available(block)) {
                return None;
            }
            let next =
                if forward { queue.next_available(block) } else { queue.previous_available(block) };
            Some(next)
        })?;
        match found {
            None => return Ok(None),
            Some(Some(id)) => return Ok(Some(Self::view(slf, id)?.into_any())),
            Some(None) => {}
        }
        let bindings = lock(py, &this.bindings)?;
        let end = if forward { &bindings.tail } else { &bindings.head };
        Ok(end.as_ref().map(|end| end.bind(py).clone()))
    }

    /// The ids of this pool's blocks in `items`, without null blocks; the rest goes to `foreign`.
    fn own_ids<'py>(
        slf: &Bound<'py, Self>,
        items: &Bound<'py, PyAny>,
        foreign: &mut Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<BlockId>> {
        let mut ids = Vec::with_capacity(items.len().unwrap_or(0));
        for item in items.try_iter()? {
            let item = item?;
            match item.cast::<Block>() {
                Ok(block) if block.get().id.is_null() => {}
                Ok(block) if block.get().blocks.is(slf) => ids.push(block.get().id),
                _ => foreign.push(item),
            }
        }
        Ok(ids)
    }

    fn own_id(slf: &Bound<'_, Self>, block: &Bound<'_, PyAny>) -> PyResult<BlockId> {
        match block.cast::<Block>() {
            Ok(block) if block.get().blocks.is(slf) => Ok(block.get().id),
            _ => Err(PyTypeError::new_err(format!("{block} is not a block of this pool"))),
        }
    }

    pub(super) fn insert_key(
        &self,
        py: Python<'_>,
        id: BlockId,
        key: Key,
        num_tokens: Option<u32>,
    ) -> PyResult<bool> {
        let num_tokens = num_tokens.unwrap_or(0);
        let inserted = self.engine.store(py, |store| {
            let ownerless =
                store.pool(self.pool).is_available(id) && !store.pool(self.pool).is_hashed(id);
            if !ownerless {
                return Ok(store.insert_key(self.pool, id, &key, num_tokens));
            }
            // Content without an owner belongs among the cached blocks.
            store.touch(self.pool, id)?;
            let new = store.insert_key(self.pool, id, &key, num_tokens);
            store.free(self.pool, std::iter::once(id))?;
            Ok(new)
        })?;
        inserted.map_err(core_error)
    }

    pub(super) fn remove_keys(&self, py: Python<'_>, id: BlockId) -> PyResult<Vec<Key>> {
        self.engine.store(py, |store| {
            let earlier = std::mem::take(store.evicted());
            store.drop_keys(self.pool, id);
            std::mem::replace(store.evicted(), earlier)
        })
    }

    fn bytes_of<'py>(py: Python<'py>, keys: &[Key]) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, &key::to_bytes(key))))
    }
}

fn lock<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> PyResult<MutexGuard<'a, T>> {
    mutex.lock_py_attached(py).map_err(|_| {
        invalid_argument("an earlier panic left the block pool undefined; restart the engine")
    })
}

#[pymethods]
impl Blocks {
    #[new]
    #[pyo3(signature = (num_blocks, *, keep_evicted = false))]
    fn new(num_blocks: u32, keep_evicted: bool) -> PyResult<Self> {
        let engine = Engine::new(BlockStore::fixed(num_blocks).map_err(core_error)?);
        Ok(Self::of_pool(&Arc::new(engine), PoolId(0), num_blocks, keep_evicted))
    }

    #[staticmethod]
    #[pyo3(signature = (num_slabs, blocks_per_slab, *, keep_evicted = false))]
    fn over_slabs(
        num_slabs: u32,
        blocks_per_slab: Vec<u32>,
        keep_evicted: bool,
    ) -> PyResult<Vec<Self>> {
        let store = BlockStore::shared(num_slabs, &blocks_per_slab).map_err(core_error)?;
        let engine = Arc::new(Engine::new(store));
        let pools = (0..).map(PoolId).zip(blocks_per_slab);
        let blocks = pools
            .map(|(pool, blocks)| Self::of_pool(&engine, pool, num_slabs * blocks, keep_evicted));
        Ok(blocks.collect())
    }

    /// Slabs that can hold something; a pool without slabs counts each block as one, here and below.
    #[getter]
    fn num_slabs(&self, py: Python<'_>) -> PyResult<u64> {
        self.engine.store(py, |store| store.num_slabs())
    }

    /// Slabs without a live block, of any pool.
    #[getter]
    fn num_whole_slabs(&self, py: Python<'_>) -> PyResult<u64> {
        self.engine.store(py, |store| store.num_whole_slabs())
    }

    /// Slabs that belong to this pool.
    #[getter]
    fn num_owned_slabs(&self, py: Python<'_>) -> PyResult<u64> {
        self.engine.store(py, |store| {
            store.as_slabs().map_or(store.num_slabs(), |slabs| slabs.num_owned(self.pool).into())
        })
    }

    /// Slabs that pools took from each other.
    #[getter]
    fn num_steals(&self, py: Python<'_>) -> PyResult<u64> {
        self.engine.store(py, |store| store.as_slabs().map_or(0, SlabStore::num_steals))
    }

    /// Blocks that have an owner.
    #[getter]
    fn num_live(&self, py: Python<'_>) -> PyResult<u32> {
        self.engine.store(py, |store| store.pool(self.pool).num_live())
    }

    fn bind(
        &self,
        py: Python<'_>,
        owner: Py<PyAny>,
        head: Py<PyAny>,
        tail: Py<PyAny>,
        block_class: Py<PyAny>,
    ) -> PyResult<()> {
        let mut bindings = lock(py, &self.bindings)?;
        (bindings.owner, bindings.head, bindings.tail) = (Some(owner), Some(head), Some(tail));
        bindings.class = Some(block_class);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.len as usize
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let len = isize::try_from(slf.get().len).map_err(invalid_argument)?;
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(len)?;
            let ids: Vec<BlockId> = (0..range.slicelength)
                .filter_map(|step| {
                    let at = range.start + isize::try_from(step).ok()? * range.step;
                    u32::try_from(at).ok().map(BlockId)
                })
                .collect();
            return Ok(Self::views(slf, &ids)?.into_any());
        }
        let index: isize = index.extract()?;
        let index = if index < 0 { index + len } else { index };
        match u32::try_from(index) {
            Ok(id) if id < slf.get().len => Ok(Self::view(slf, BlockId(id))?.into_any()),
            _ => Err(PyIndexError::new_err(format!("block {index} of {len}"))),
        }
    }

    #[getter]
    fn num_free(&self, py: Python<'_>) -> PyResult<i64> {
        let actual = self.engine.store(py, |store| store.pool(self.pool).num_available())?;
        Ok(i64::from(actual) + self.free_offset())
    }

    #[setter]
    fn set_num_free(&self, py: Python<'_>, count: i64) -> PyResult<()> {
        let actual = self.engine.store(py, |store| store.pool(self.pool).num_available())?;
        self.free_offset.store(count - i64::from(actual), Ordering::Relaxed);
        Ok(())
    }

    #[getter]
    fn num_cached(&self, py: Python<'_>) -> PyResult<u32> {
        self.engine.store(py, |store| store.pool(self.pool).num_cached())
    }

    #[getter]
    fn num_keys(&self, py: Python<'_>) -> PyResult<usize> {
        self.engine.store(py, |store| store.prefix_index(self.pool).len())
    }

    fn allocate<'py>(slf: &Bound<'py, Self>, num_blocks: u64) -> PyResult<Bound<'py, PyList>> {
        let this = slf.get();
        let mut ids = Vec::with_capacity(num_blocks as usize);
        let allocated = this.engine.store(slf.py(), |store| {
            store.allocate(this.pool, num_blocks, &mut ids)?;
            if !this.keep_evicted {
                store.evicted().clear();
            }
            Ok(())
        })?;
        allocated.map_err(core_error)?;
        Self::views(slf, &ids)
    }

    fn take_evicted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys = self.engine.store(py, |store| std::mem::take(store.evicted()))?;
        Self::bytes_of(py, &keys)
    }

    fn touch<'py>(slf: &Bound<'py, Self>, blocks: &Bound<'py, PyAny>) -> PyResult<()> {
        let mut foreign = Vec::new();
        let ids = Self::own_ids(slf, blocks, &mut foreign)?;
        if let Some(block) = foreign.first() {
            return Err(PyTypeError::new_err(format!("{block} is not a block of this pool")));
        }
        let touched = slf
            .get()
            .engine
            .store(slf.py(), |store| store.touch_all(slf.get().pool, ids.into_iter()))?;
        touched.map_err(core_error)
    }

    fn free<'py>(
        slf: &Bound<'py, Self>,
        blocks: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut foreign = Vec::new();
        let ids = Self::own_ids(slf, blocks, &mut foreign)?;
        let freed = slf
            .get()
            .engine
            .store(slf.py(), |store| store.free(slf.get().pool, ids.iter().copied()))?;
        freed.map_err(core_error)?;
        Ok(foreign)
    }

    fn free_warm<'py>(slf: &Bound<'py, Self>, blocks: &Bound<'py, PyAny>) -> PyResult<()> {
        let ids = Self::own_ids(slf, blocks, &mut Vec::new())?;
        let freed = slf.get().engine.store(slf.py(), |store| match store {
            BlockStore::Fixed(store) => store.free_warm(ids.iter().copied()),
            BlockStore::Slab(store) => store.free(slf.get().pool, ids.iter().copied()),
        })?;
        freed.map_err(core_error)
    }

    fn get<'py>(slf: &Bound<'py, Self>, key: &[u8]) -> PyResult<Option<Bound<'py, Block>>> {
        let key = key::parse(key)?;
        let found = slf.get().engine.store(slf.py(), |store| store.get(slf.get().pool, &key))?;
        found.map(|id| Self::view(slf, id)).transpose()
    }

    fn get_in_groups<'py>(
        slf: &Bound<'py, Self>,
        block_hash: &[u8],
        groups: Vec<u32>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let keys = groups.into_iter().map(|group| key::new(block_hash, group));
        let keys = keys.collect::<PyResult<Vec<_>>>()?;
        let ids: Option<Vec<_>> = slf.get().engine.store(slf.py(), |store| {
            keys.iter().map(|key| store.get(slf.get().pool, key)).collect()
        })?;
        ids.map(|ids| Self::views(slf, &ids)).transpose()
    }

    fn get_all<'py>(slf: &Bound<'py, Self>, key: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let key = key::parse(key)?;
        let ids: Vec<_> = slf
            .get()
            .engine
            .store(slf.py(), |store| store.prefix_index(slf.get().pool).blocks(&key).collect())?;
        Self::views(slf, &ids)
    }

    fn contains(&self, py: Python<'_>, key: &[u8], block_id: u32) -> PyResult<bool> {
        let key = key::parse(key)?;
        self.engine
            .store(py, |store| store.prefix_index(self.pool).contains(&key, BlockId(block_id)))
    }

    #[pyo3(signature = (key, block, num_tokens = None))]
    fn insert(
        slf: &Bound<'_, Self>,
        key: &[u8],
        block: &Bound<'_, PyAny>,
        num_tokens: Option<u32>,
    ) -> PyResult<bool> {
        let id = Self::own_id(slf, block)?;
        slf.get().insert_key(slf.py(), id, key::parse(key)?, num_tokens)
    }

    #[pyo3(signature = (
        blocks, block_hashes, hashes_per_block, start, end, block_size, group, mask = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "those of vLLM's cache_full_blocks")]
    fn insert_full(
        slf: &Bound<'_, Self>,
        blocks: &Bound<'_, PyList>,
        block_hashes: &Bound<'_, PyList>,
        hashes_per_block: usize,
        start: usize,
        end: usize,
        block_size: u32,
        group: u32,
        mask: Option<Vec<bool>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        for at in start..end {
            if mask.as_ref().is_some_and(|mask| !mask[at - start]) {
                continue;
            }
            let id = Self::own_id(slf, &blocks.get_item(at)?)?;
            if id.is_null() {
                continue;
            }
            let hash = block_hashes.get_item((at + 1) * hashes_per_block - 1)?;
            let key = key::new(hash.cast::<PyBytes>()?.as_bytes(), group)?;
            let num_tokens = (at as u32 + 1) * block_size;
            this.engine.store(py, |store| {
                if let Some((_, known)) = store.prefix_index(this.pool).first_key(id) {
                    // A block that is cached up to a point inside it may be promoted, nothing else.
                    if known == 0 || known >= num_tokens {
                        return Err(PyAssertionError::new_err(format!(
                            "block {id} is cached for {known} tokens and cannot be for {num_tokens}"
                        )));
                    }
                    store.drop_keys(this.pool, id);
                    store.evicted().clear();
                }
                store.insert_key(this.pool, id, &key, num_tokens);
                Ok(())
            })??;
        }
        Ok(())
    }

    fn remove<'py>(
        slf: &Bound<'py, Self>,
        block: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = slf.get().remove_keys(slf.py(), Self::own_id(slf, block)?)?;
        Self::bytes_of(slf.py(), &keys)
    }

    fn further_keys<'py>(&self, py: Python<'py>, block_id: u32) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<_> = self.engine.store(py, |store| {
            store.prefix_index(self.pool).further_keys(BlockId(block_id)).collect()
        })?;
        Self::bytes_of(py, &keys)
    }

    fn move_keys(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (source, target) = (Self::own_id(slf, source)?, Self::own_id(slf, target)?);
        slf.get().engine.store(slf.py(), |store| {
            if store.prefix_index(slf.get().pool).first_key(target).is_some() {
                return Err(PyAssertionError::new_err(format!(
                    "block {target} has a hash already"
                )));
            }
            store.move_keys(slf.get().pool, source, target);
            Ok(())
        })?
    }

    #[getter]
    fn first_free<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::neighbour(slf, None, true)
    }

    #[getter]
    fn last_free<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::neighbour(slf, None, false)
    }

    fn all_free<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let engine = &slf.get().engine;
        let ids = engine.store(slf.py(), |store| store.free_order(slf.get().pool))?;
        Self::views(slf, &ids)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.engine.store(py, Store::reset)?.map_err(core_error)
    }

    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.engine.store(py, |store| store.memory_bytes())
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.engine.store(py, |store| store.check_integrity())?.map_err(integrity_error)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // The thread that holds the lock also holds references to the bindings.
        let Ok(bindings) = self.bindings.try_lock() else { return Ok(()) };
        for bound in [&bindings.owner, &bindings.head, &bindings.tail, &bindings.class] {
            visit.call(bound)?;
        }
        bindings.pages.iter().flatten().flatten().try_for_each(|view| visit.call(view))
    }

    fn __clear__(&self) {
        if let Ok(mut bindings) = self.bindings.try_lock() {
            let pages = bindings.pages.len();
            let cleared = std::mem::take(&mut *bindings);
            bindings.pages.resize_with(pages, || None);
            drop(bindings);
            drop(cleared);
        }
    }
}
