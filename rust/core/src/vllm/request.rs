//! A request's blocks, and what its groups remember about it.

use crate::digest::Digest;
use crate::ids::BlockId;

use super::quiet::Quiet;

/// What the engine knows of a request at the time of a call. Counts are tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Computed, drafts among them.
    pub num_computed: u32,
    /// Known.
    pub num_tokens: u32,
    /// Of the prompt.
    pub num_prompt: u32,
    /// Scheduled in steps that have not ended.
    pub num_in_flight: u32,
    /// Where earlier requests were seen to diverge, or 0.
    pub shared_prefix_boundary: u32,
    /// Whether it is waiting to be admitted, for the first time or again.
    pub is_waiting: bool,
}

/// One group's view of a request.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<BlockId>,
    /// Leading blocks that are cached or need not be; `None` before the first admission.
    pub(crate) num_cached: Option<u32>,
    /// A shared block at this position that must be copied before it is written.
    pub(crate) partial_hit: Option<(u32, BlockId)>,
    pub(crate) aligned: Aligned,
}

/// What an aligned recurrent group remembers about a request.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    /// Position of the state that the step before the latest allocation wrote.
    pub(crate) last_state: Option<u32>,
    /// Leading positions that have been given back.
    pub(crate) num_retired: u32,
    /// Whether the state and its draft blocks have been allocated.
    pub(crate) allocated: bool,
    /// Tokens and position of the checkpoint that this chunk writes.
    pub(crate) checkpoint: Option<(u32, u32)>,
    /// A block keyed inside by this request, with the tokens up to there.
    pub(crate) producer_tail: Option<(BlockId, u32)>,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    /// One a hash block of known tokens, read from the engine as they appear.
    pub(crate) digests: Vec<Digest>,
    pub(crate) tables: Vec<Table>,
    pub(crate) quiet: Quiet,
}

impl Request {
    pub(crate) fn new(num_groups: usize) -> Self {
        Self {
            digests: Vec::new(),
            tables: std::iter::repeat_with(Table::default).take(num_groups).collect(),
            quiet: Quiet::default(),
        }
    }

    /// Whether it was admitted.
    pub(crate) fn is_running(&self) -> bool {
        self.tables.iter().any(|table| table.num_cached.is_some())
    }
}

/// `blocks` without the null blocks at its front.
pub(crate) fn trim_null_head(blocks: &[BlockId]) -> &[BlockId] {
    let head = blocks.iter().take_while(|block| block.is_null()).count();
    &blocks[head..]
}
