//! Recurrent states that move to a new block at every block border, so that the block before can be
//! kept as a checkpoint: vLLM's Mamba cache mode `align`.

use super::{Group, Table};
use crate::ids::BlockId;

/// What a request remembers of its moving state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MovingState {
    /// Position of the state that the step before the latest allocation wrote.
    pub(crate) last_state: Option<u32>,
    /// Whether the state and its draft blocks have been allocated.
    pub(crate) allocated: bool,
    /// Tokens and position of the checkpoint that this chunk writes.
    pub(crate) checkpoint: Option<(u32, u32)>,
    /// A block hashed inside by this request, with the tokens up to there.
    pub(crate) producer_tail: Option<(BlockId, u32)>,
}

/// The first number of processed tokens after `num_processed` at which a state is given back. States
/// wait between null blocks, so the next position to look at is where the last look ended.
pub(crate) fn next_skip(group: &Group, table: &Table) -> u32 {
    let size = group.spec.block_size;
    let skipped = (table.num_skipped + 1) * size;
    let is_held = |&at: &u32| table.blocks.get(at as usize).is_some_and(|block| !block.is_null());
    let last_state = table.moving().last_state.filter(is_held);
    // The state before the latest one goes once a token after its block was processed.
    last_state.map_or(skipped, |at| skipped.min((at + 1) * size)) + 1
}
