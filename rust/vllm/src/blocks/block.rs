//! [`Block`]: one block as vLLM's managers and connectors see it.

use hybrid_blocks::{BlockId, Key, PoolId, Store};
use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use super::blocks::Blocks;
use super::key;
use crate::engine::Engine;
use hybrid_blocks_interop::core_error;

/// The block itself is a number; the pool knows everything else.
#[pyclass(frozen, weakref, module = "hybrid_blocks._core.vllm")]
pub(crate) struct Block {
    pub(super) blocks: Py<Blocks>,
    pub(super) id: BlockId,
}

impl Block {
    fn engine(&self) -> &Engine {
        self.blocks.get().engine()
    }

    fn pool(&self) -> PoolId {
        self.blocks.get().pool()
    }

    fn first_key(&self, py: Python<'_>) -> PyResult<Option<(Key, u32)>> {
        self.engine().store(py, |store| store.prefix_index(self.pool()).first_key(self.id))
    }
}

#[pymethods]
impl Block {
    #[getter]
    fn block_id(&self) -> u32 {
        self.id.0
    }

    #[getter]
    fn is_null(&self) -> bool {
        self.id.is_null()
    }

    #[getter(pool)]
    fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.blocks.get().owner(py)
    }

    #[getter]
    fn ref_cnt(&self, py: Python<'_>) -> PyResult<u32> {
        self.engine().store(py, |store| store.pool(self.pool()).ref_count(self.id))
    }

    #[setter]
    fn set_ref_cnt(&self, py: Python<'_>, count: u32) -> PyResult<()> {
        self.engine().store(py, |store| {
            let now = store.pool(self.pool()).ref_count(self.id);
            if (now == 0) != (count == 0) {
                return Err(PyValueError::new_err(format!(
                    "ref_cnt of block {} cannot go from {now} to {count}: only the pool's touch \
                     and free_blocks give a block its first owner or take its last",
                    self.id
                )));
            }
            for _ in now..count {
                store.touch(self.pool(), self.id).map_err(core_error)?;
            }
            for _ in count..now {
                store.free(self.pool(), std::iter::once(self.id)).map_err(core_error)?;
            }
            Ok(())
        })?
    }

    #[getter]
    fn block_hash<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.first_key(py)?.map(|(key, _)| PyBytes::new(py, &key::to_bytes(&key))))
    }

    #[getter]
    fn block_hash_num_tokens(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        let num_tokens = self.first_key(py)?.map(|(_, num_tokens)| num_tokens);
        Ok(num_tokens.filter(|&num_tokens| num_tokens > 0))
    }

    // The fields of vLLM's dataclass, which its `==` compares.
    #[getter]
    fn _block_hash<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.block_hash(py)
    }

    #[setter(_block_hash)]
    fn replace_block_hash(&self, py: Python<'_>, block_hash: Option<&[u8]>) -> PyResult<()> {
        let key = block_hash.map(key::parse).transpose()?;
        let blocks = self.blocks.get();
        blocks.remove_keys(py, self.id)?;
        if let Some(key) = key {
            blocks.insert_key(py, self.id, key, None)?;
        }
        Ok(())
    }

    #[getter]
    fn _block_hash_num_tokens(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.block_hash_num_tokens(py)
    }

    #[pyo3(signature = (block_hash, num_tokens = None))]
    fn set_block_hash(
        &self,
        py: Python<'_>,
        block_hash: &[u8],
        num_tokens: Option<u32>,
    ) -> PyResult<()> {
        let blocks = self.blocks.get();
        if self.first_key(py)?.is_some() {
            return Err(PyAssertionError::new_err(format!("block {} has a hash already", self.id)));
        }
        blocks.insert_key(py, self.id, key::parse(block_hash)?, num_tokens)?;
        Ok(())
    }

    fn reset_hash(&self, py: Python<'_>) -> PyResult<()> {
        self.blocks.get().remove_keys(py, self.id)?;
        Ok(())
    }

    #[getter]
    fn next_free_block<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Blocks::neighbour(self.blocks.bind(py), Some(self.id), true)
    }

    #[getter]
    fn prev_free_block<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Blocks::neighbour(self.blocks.bind(py), Some(self.id), false)
    }

    /// The class for `isinstance`: vLLM's own.
    #[getter(__class__)]
    fn class<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyAny> {
        let py = slf.py();
        match slf.get().blocks.get().class(py) {
            Some(class) => class,
            None => PyType::new::<Self>(py).into_any(),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let count = self.ref_cnt(py)?;
        let hash = match self.block_hash(py)? {
            Some(hash) => hash.repr()?.to_string(),
            None => "None".to_owned(),
        };
        Ok(format!("KVCacheBlock(block_id={}, ref_cnt={count}, block_hash={hash})", self.id))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.blocks)
    }
}
