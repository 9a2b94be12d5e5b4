//! Pools: blocks of one size, who owns each, and which ownerless block goes next.
//!
//! A block is *live* (it has owners), *free* (no owner, no content worth keeping) or *cached* (no
//! owner, but its content can be found). An allocation takes free blocks first, then evicts cached
//! ones.
//!
//! | pool | its free blocks wait | used by |
//! |---|---|---|
//! | [`QueuePool`] | in one queue, in vLLM's order | `FixedStore` |
//! | [`SlabPool`] | in one list per slab | `SlabStore` |

mod block_states;
mod check;
mod eviction_queue;
mod idle_slabs;
mod links;
mod priorities;
mod queue_pool;
mod slab_pool;
mod slab_take;
mod slabs;

pub use block_states::BlockStates;
pub use queue_pool::QueuePool;
pub(crate) use slab_pool::SlabPool;
pub use slabs::BesideLive;
pub(crate) use slabs::Slabs;
