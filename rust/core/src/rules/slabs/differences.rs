//! [`Differences`]: where the two sets of rules still decide differently.

/// Each is to be decided for both by what it does to hits, in the replay and in vLLM's scheduler.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each goes on its own")]
pub(crate) struct Differences {
    /// Whether places behind what the same prompt, sent again, can hit are moved there.
    pub(crate) clamps_places: bool,
    /// Whether a copy follows the answers of requests with drafts.
    pub(crate) follows_drafts: bool,
    /// Whether a copy that is wanted for two reasons follows the answer, and is not counted as the prompt's.
    pub(crate) follows_first: bool,
    /// Whether the last state of a request is kept although no copy follows its answer.
    pub(crate) keeps_any_end: bool,
}

impl Differences {
    /// Of `BlockManager`.
    pub(crate) const OF_BLOCK_MANAGER: Self = Self {
        clamps_places: false,
        follows_drafts: true,
        follows_first: true,
        keeps_any_end: false,
    };

    /// Of `KvCacheManager`.
    pub(crate) const OF_VLLM: Self = Self {
        clamps_places: true,
        follows_drafts: false,
        follows_first: false,
        keeps_any_end: true,
    };
}
