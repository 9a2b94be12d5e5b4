//! [`AllocatedBlocks`]: vLLM's `KVCacheBlocks` as ids. Block objects are made when asked for.

use std::borrow::Cow;
use std::sync::Arc;

use hybrid_blocks::BlockId;
use hybrid_blocks::Store;
use pyo3::exceptions::{PyAssertionError, PyIndexError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::blocks::Blocks;

/// The pool of each group.
pub(super) type GroupPools = Arc<[Py<Blocks>]>;

/// Ids by group, and what it takes to make blocks of them.
#[pyclass(frozen, module = "hybrid_blocks._core.vllm")]
pub(crate) struct AllocatedBlocks {
    pub(super) ids: Vec<Vec<BlockId>>,
    pub(super) pools: GroupPools,
    /// vLLM's own class, which `isinstance` asks for.
    pub(super) class: Py<PyType>,
}

impl AllocatedBlocks {
    pub(super) fn is_empty(ids: &[Vec<BlockId>]) -> bool {
        ids.iter().all(Vec::is_empty)
    }

    fn with_ids(&self, py: Python<'_>, ids: Vec<Vec<BlockId>>) -> Self {
        Self { ids, pools: Arc::clone(&self.pools), class: self.class.clone_ref(py) }
    }
}

/// Ids of any object that is, or looks like, vLLM's `KVCacheBlocks`.
pub(super) fn ids_of<'a>(blocks: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [Vec<BlockId>]>> {
    if let Ok(own) = blocks.cast::<AllocatedBlocks>() {
        return Ok(Cow::Borrowed(&own.get().ids));
    }
    ids_of_groups(&blocks.getattr("blocks")?).map(Cow::Owned)
}

/// Ids of block objects by group.
pub(super) fn ids_of_groups(groups: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<BlockId>>> {
    let id = |block: PyResult<Bound<'_, PyAny>>| block?.getattr("block_id")?.extract().map(BlockId);
    groups.try_iter()?.map(|group| group?.try_iter()?.map(id).collect()).collect()
}

/// Lists of ids by group.
pub(crate) fn id_lists<'py, 'a>(
    py: Python<'py>,
    groups: impl Iterator<Item = &'a [BlockId]>,
) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, groups.map(|ids| list(py, ids)).collect::<PyResult<Vec<_>>>()?)
}

fn list<'py>(py: Python<'py>, ids: &[BlockId]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, ids.iter().map(|id| id.0))
}

#[pymethods]
impl AllocatedBlocks {
    #[getter]
    fn blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        if Self::is_empty(&self.ids) {
            return PyTuple::new(py, self.ids.iter().map(|_| PyTuple::empty(py)));
        }
        let groups = self.ids.iter().zip(&*self.pools);
        let views: PyResult<Vec<_>> =
            groups.map(|(ids, pool)| Blocks::views(pool.bind(py), ids)).collect();
        PyTuple::new(py, views?)
    }

    #[pyo3(signature = (allow_none = false, *, group_ids = None))]
    pub(crate) fn get_block_ids<'py>(
        &self,
        py: Python<'py>,
        allow_none: bool,
        group_ids: Option<Vec<usize>>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let groups: Vec<&[BlockId]> = match group_ids {
            None => self.ids.iter().map(Vec::as_slice).collect(),
            Some(groups) => {
                let group = |group: usize| {
                    self.ids.get(group).map(Vec::as_slice).ok_or_else(|| {
                        PyIndexError::new_err(format!("group {group} of {}", self.ids.len()))
                    })
                };
                groups.into_iter().map(group).collect::<PyResult<_>>()?
            }
        };
        if allow_none && groups.iter().all(|ids| ids.is_empty()) {
            return Ok(None);
        }
        id_lists(py, groups.into_iter()).map(Some)
    }

    fn get_unhashed_block_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let [ids] = self.ids.as_slice() else {
            return Err(PyAssertionError::new_err(format!(
                "one group is expected, there are {}",
                self.ids.len()
            )));
        };
        list(py, &self.unhashed(py, 0, ids, true)?)
    }

    fn get_unhashed_block_ids_all_groups<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let groups = self.ids.iter().enumerate();
        let lists = groups.map(|(group, ids)| list(py, &self.unhashed(py, group, ids, false)?));
        PyList::new(py, lists.collect::<PyResult<Vec<_>>>()?)
    }

    fn new_empty(&self, py: Python<'_>) -> Self {
        self.with_ids(py, vec![Vec::new(); self.ids.len()])
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        let others = ids_of(other)?;
        let pairs = self.ids.iter().zip(&*others);
        let ids = pairs.map(|(own, other)| [own.as_slice(), other].concat()).collect();
        Ok(self.with_ids(other.py(), ids))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match other.cast::<Self>() {
            Ok(other) => Ok(self.ids == other.get().ids),
            Err(_) => match other.getattr_opt("blocks")? {
                Some(blocks) => self.blocks(other.py())?.eq(blocks),
                None => Ok(false),
            },
        }
    }

    #[getter(__class__)]
    fn class<'py>(&self, py: Python<'py>) -> Bound<'py, PyType> {
        self.class.bind(py).clone()
    }

    fn __repr__(&self) -> String {
        format!("KVCacheBlocks({:?})", self.ids)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.pools.iter().try_for_each(|pool| visit.call(pool))
    }
}

impl AllocatedBlocks {
    fn unhashed(
        &self,
        py: Python<'_>,
        group: usize,
        ids: &[BlockId],
        nulls: bool,
    ) -> PyResult<Vec<BlockId>> {
        let blocks = self.pools[group].get();
        blocks.engine().store(py, |store| {
            let is_hashed = |id: BlockId| store.prefix_index(blocks.pool()).first_key(id).is_some();
            let wanted = |id: &BlockId| !is_hashed(*id) && (nulls || !id.is_null());
            ids.iter().copied().filter(wanted).collect()
        })
    }
}
