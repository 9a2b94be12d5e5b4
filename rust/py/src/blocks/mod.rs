//! vLLM's blocks: the blocks of one fixed pool, seen one by one as Python objects and worked on many
//! at a time.

mod block;
pub(crate) mod key;
mod views;

pub(crate) use block::Block;
pub(crate) use views::Blocks;

pub(crate) const POOL: hybrid_blocks::PoolId = hybrid_blocks::PoolId(0);
