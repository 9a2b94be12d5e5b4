//! [`Blocks`]: all blocks of a pool as a sequence, and what vLLM's `BlockPool` does with many of them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};

use hybrid_blocks::{BlockId, FixedStore, Key, Store};
use pyo3::exceptions::{PyAssertionError, PyIndexError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyList, PySlice};

use super::block::Block;
use super::{POOL, key};
use crate::error::{core_error, invalid_argument};

/// Views are made in pages when first asked for, so that a pool without watchers holds none.
const PAGE: usize = 256;

type Page = Box<[Option<Py<Block>>]>;

/// What the Python side ties to the blocks: its pool, the ends of its free queue, vLLM's class.
#[derive(Default)]
struct Ties {
    owner: Option<Py<PyAny>>,
    head: Option<Py<PyAny>>,
    tail: Option<Py<PyAny>>,
    class: Option<Py<PyAny>>,
    pages: Vec<Option<Page>>,
}

#[pyclass(frozen, sequence, weakref, module = "hybrid_blocks._core")]
pub(crate) struct Blocks {
    // Never locked while a Python object is made: that may run the garbage collector, and with it
    // anything.
    store: Mutex<FixedStore>,
    ties: Mutex<Ties>,
    len: u32,
    keep_evicted: bool,
    /// What was written to `num_free` from outside, less what it was.
    free_offset: AtomicI64,
}

impl Blocks {
    pub(crate) fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, FixedStore>> {
        lock(py, &self.store)
    }

    /// Blocks that are said to be free beyond those that are.
    pub(crate) fn free_offset(&self) -> i64 {
        self.free_offset.load(Ordering::Relaxed)
    }

    pub(super) fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let ties = lock(py, &self.ties).ok()?;
        ties.owner.as_ref().map(|owner| owner.bind(py).clone())
    }

    pub(super) fn class<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let ties = lock(py, &self.ties).ok()?;
        ties.class.as_ref().map(|class| class.bind(py).clone())
    }

    /// The one view of a block.
    fn view<'py>(slf: &Bound<'py, Self>, id: BlockId) -> PyResult<Bound<'py, Block>> {
        let (py, this) = (slf.py(), slf.get());
        let known = |ties: &Ties| {
            let page = ties.pages[id.index() / PAGE].as_ref()?;
            page[id.index() % PAGE].as_ref().map(|view| view.bind(py).clone())
        };
        if let Some(view) = known(&*lock(py, &this.ties)?) {
            return Ok(view);
        }
        let view = Bound::new(py, Block { blocks: slf.clone().unbind(), id })?;
        let mut ties = lock(py, &this.ties)?;
        if let Some(view) = known(&ties) {
            return Ok(view);
        }
        let page = ties.pages[id.index() / PAGE]
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
        let found = {
            let store = this.lock(py)?;
            let pool = store.queue();
            if block.is_some_and(|block| !store.pool(POOL).is_available(block)) {
                return Ok(None);
            }
            if forward { pool.next_available(block) } else { pool.previous_available(block) }
        };
        if let Some(id) = found {
            return Ok(Some(Self::view(slf, id)?.into_any()));
        }
        let ties = lock(py, &this.ties)?;
        let end = if forward { &ties.tail } else { &ties.head };
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
        let mut store = self.lock(py)?;
        let ownerless = store.pool(POOL).is_available(id) && !store.pool(POOL).is_hashed(id);
        if !ownerless {
            return Ok(store.insert_key(POOL, id, &key, num_tokens.unwrap_or(0)));
        }
        // Content without an owner belongs among the cached blocks.
        store.touch(POOL, id).map_err(core_error)?;
        let new = store.insert_key(POOL, id, &key, num_tokens.unwrap_or(0));
        store.free(POOL, std::iter::once(id)).map_err(core_error)?;
        Ok(new)
    }

    pub(super) fn remove_keys(&self, py: Python<'_>, id: BlockId) -> PyResult<Vec<Key>> {
        let mut store = self.lock(py)?;
        let earlier = std::mem::take(store.evicted());
        store.drop_keys(POOL, id);
        Ok(std::mem::replace(store.evicted(), earlier))
    }

    fn spelled<'py>(py: Python<'py>, keys: &[Key]) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, &key::spell(key))))
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
        let store = FixedStore::new(num_blocks).map_err(core_error)?;
        let pages = (num_blocks as usize).div_ceil(PAGE);
        let ties = Ties {
            pages: std::iter::repeat_with(|| None).take(pages).collect(),
            ..Ties::default()
        };
        Ok(Self {
            store: Mutex::new(store),
            ties: Mutex::new(ties),
            len: num_blocks,
            keep_evicted,
            free_offset: AtomicI64::new(0),
        })
    }

    fn tie(
        &self,
        py: Python<'_>,
        owner: Py<PyAny>,
        head: Py<PyAny>,
        tail: Py<PyAny>,
        block_class: Py<PyAny>,
    ) -> PyResult<()> {
        let mut ties = lock(py, &self.ties)?;
        (ties.owner, ties.head, ties.tail) = (Some(owner), Some(head), Some(tail));
        ties.class = Some(block_class);
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
        Ok(i64::from(self.lock(py)?.pool(POOL).num_available()) + self.free_offset())
    }

    #[setter]
    fn set_num_free(&self, py: Python<'_>, count: i64) -> PyResult<()> {
        let actual = i64::from(self.lock(py)?.pool(POOL).num_available());
        self.free_offset.store(count - actual, Ordering::Relaxed);
        Ok(())
    }

    #[getter]
    fn num_cached(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.lock(py)?.pool(POOL).num_cached())
    }

    #[getter]
    fn num_keys(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.prefix_index(POOL).len())
    }

    fn allocate<'py>(slf: &Bound<'py, Self>, num_blocks: u64) -> PyResult<Bound<'py, PyList>> {
        let mut ids = Vec::with_capacity(num_blocks as usize);
        {
            let mut store = slf.get().lock(slf.py())?;
            store.allocate(POOL, num_blocks, &mut ids).map_err(core_error)?;
            if !slf.get().keep_evicted {
                store.evicted().clear();
            }
        }
        Self::views(slf, &ids)
    }

    fn take_evicted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys = std::mem::take(self.lock(py)?.evicted());
        Self::spelled(py, &keys)
    }

    fn touch<'py>(slf: &Bound<'py, Self>, blocks: &Bound<'py, PyAny>) -> PyResult<()> {
        let mut foreign = Vec::new();
        let ids = Self::own_ids(slf, blocks, &mut foreign)?;
        if let Some(block) = foreign.first() {
            return Err(PyTypeError::new_err(format!("{block} is not a block of this pool")));
        }
        let mut store = slf.get().lock(slf.py())?;
        ids.into_iter().try_for_each(|id| store.touch(POOL, id)).map_err(core_error)
    }

    fn free<'py>(
        slf: &Bound<'py, Self>,
        blocks: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut foreign = Vec::new();
        let ids = Self::own_ids(slf, blocks, &mut foreign)?;
        let mut store = slf.get().lock(slf.py())?;
        store.free(POOL, ids.iter().copied()).map_err(core_error)?;
        Ok(foreign)
    }

    fn free_warm<'py>(slf: &Bound<'py, Self>, blocks: &Bound<'py, PyAny>) -> PyResult<()> {
        let ids = Self::own_ids(slf, blocks, &mut Vec::new())?;
        let mut store = slf.get().lock(slf.py())?;
        store.free_warm(ids.iter().copied()).map_err(core_error)
    }

    fn get<'py>(slf: &Bound<'py, Self>, key: &[u8]) -> PyResult<Option<Bound<'py, Block>>> {
        let found = slf.get().lock(slf.py())?.get(POOL, &key::parse(key)?);
        found.map(|id| Self::view(slf, id)).transpose()
    }

    fn get_in_groups<'py>(
        slf: &Bound<'py, Self>,
        block_hash: &[u8],
        groups: Vec<u32>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut ids = Vec::with_capacity(groups.len());
        {
            let store = slf.get().lock(slf.py())?;
            for group in groups {
                match store.get(POOL, &key::new(block_hash, group)?) {
                    Some(id) => ids.push(id),
                    None => return Ok(None),
                }
            }
        }
        Self::views(slf, &ids).map(Some)
    }

    fn get_all<'py>(slf: &Bound<'py, Self>, key: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let key = key::parse(key)?;
        let ids: Vec<_> = slf.get().lock(slf.py())?.prefix_index(POOL).blocks(&key).collect();
        Self::views(slf, &ids)
    }

    fn contains(&self, py: Python<'_>, key: &[u8], block_id: u32) -> PyResult<bool> {
        let key = key::parse(key)?;
        Ok(self.lock(py)?.prefix_index(POOL).contains(&key, BlockId(block_id)))
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
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 hands lists over by value")]
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
            let mut store = this.lock(py)?;
            if let Some((_, known)) = store.prefix_index(POOL).first_key(id) {
                // A block that is cached up to a point inside it may be promoted, nothing else.
                if known == 0 || known >= num_tokens {
                    return Err(PyAssertionError::new_err(format!(
                        "block {id} is cached for {known} tokens and cannot be for {num_tokens}"
                    )));
                }
                store.drop_keys(POOL, id);
                store.evicted().clear();
            }
            store.insert_key(POOL, id, &key, num_tokens);
        }
        Ok(())
    }

    fn remove<'py>(
        slf: &Bound<'py, Self>,
        block: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = slf.get().remove_keys(slf.py(), Self::own_id(slf, block)?)?;
        Self::spelled(slf.py(), &keys)
    }

    fn further_keys<'py>(&self, py: Python<'py>, block_id: u32) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<_> =
            self.lock(py)?.prefix_index(POOL).further_keys(BlockId(block_id)).collect();
        Self::spelled(py, &keys)
    }

    fn move_keys(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (source, target) = (Self::own_id(slf, source)?, Self::own_id(slf, target)?);
        let mut store = slf.get().lock(slf.py())?;
        if store.prefix_index(POOL).first_key(target).is_some() {
            return Err(PyAssertionError::new_err(format!("block {target} has a hash already")));
        }
        store.move_keys(POOL, source, target);
        Ok(())
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
        let ids: Vec<_> = slf.get().lock(slf.py())?.free_order(POOL);
        Self::views(slf, &ids)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.reset().map_err(core_error)
    }

    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.memory_bytes())
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.check_integrity().map_err(crate::error::integrity_error)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Locked means in use, and so reachable.
        let Ok(ties) = self.ties.try_lock() else { return Ok(()) };
        for tie in [&ties.owner, &ties.head, &ties.tail, &ties.class] {
            visit.call(tie)?;
        }
        ties.pages.iter().flatten().flatten().try_for_each(|view| visit.call(view))
    }

    fn __clear__(&self) {
        if let Ok(mut ties) = self.ties.try_lock() {
            let pages = ties.pages.len();
            let cleared = std::mem::take(&mut *ties);
            ties.pages.resize_with(pages, || None);
            drop(ties);
            drop(cleared);
        }
    }
}
