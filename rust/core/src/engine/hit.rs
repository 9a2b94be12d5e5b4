//! [`Hit`]: how much of a prompt the prefix cache holds, and why not more.

/// Why a hit is not longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum HitLimit {
    /// The hit is as long as possible: all tokens but the last one, rounded down to whole blocks.
    #[default]
    Complete,
    /// The tokens after it were never computed, as far as is remembered.
    Unseen,
    /// Attention blocks after it were evicted.
    AttentionEvicted,
    /// Blocks of a window that ends after it are gone.
    WindowEvicted,
    /// Attention blocks go on, but no state was kept there.
    NoCheckpoint,
    /// Blocks go on, but not up to a length at which every group has a block border.
    Alignment,
}

impl HitLimit {
    /// All of them, in the order of [`crate::Stats::limits`].
    pub const ALL: [Self; 6] = [
        Self::Complete,
        Self::Unseen,
        Self::AttentionEvicted,
        Self::WindowEvicted,
        Self::NoCheckpoint,
        Self::Alignment,
    ];

    /// Whether nothing that an earlier request computed is missing after the attention blocks that
    /// are there: where some was evicted, its length is not known.
    pub(crate) fn is_whole(self) -> bool {
        !matches!(self, Self::AttentionEvicted | Self::WindowEvicted)
    }

    /// The name used in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Unseen => "unseen",
            Self::AttentionEvicted => "attention_evicted",
            Self::WindowEvicted => "window_evicted",
            Self::NoCheckpoint => "no_checkpoint",
            Self::Alignment => "alignment",
        }
    }
}

/// A match in the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Leading tokens that every group can restore.
    pub num_tokens: u32,
    /// Why there are not more.
    pub limit: HitLimit,
    /// Leading tokens whose attention blocks are there, if states alone end the hit; else 0.
    pub branch: u32,
}
