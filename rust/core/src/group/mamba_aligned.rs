//! Recurrent states that move to a new block at every block border, so that the block before can be
//! kept as a checkpoint: vLLM's Mamba cache mode `align`.

use crate::ids::BlockId;

/// State of one request in a group whose blocks move.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MovingState {
    /// Whether the state and its draft blocks have been allocated.
    pub(crate) allocated: bool,
    /// Tokens and position of the checkpoint that this chunk writes.
    pub(crate) checkpoint: Option<(u32, u32)>,
    /// A block hashed inside by this request, with the tokens up to there.
    pub(crate) producer_tail: Option<(BlockId, u32)>,
    /// Tokens of the longest state that the request resumed from or kept a copy of.
    pub(crate) last_kept: u32,
    /// Tokens of the copy that follows the generation, 0 for none.
    pub(crate) following: u32,
}
