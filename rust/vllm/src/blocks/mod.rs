//! vLLM's blocks: the blocks of one pool, seen one by one as Python objects and worked on many
//! at a time.

mod block;
#[expect(clippy::module_inception, reason = "the class of the module's name")]
mod blocks;
pub(crate) mod key;

pub(crate) use block::Block;
pub(crate) use blocks::Blocks;
