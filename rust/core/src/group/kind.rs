//! The table of kinds: which tokens and blocks each kind of layer still needs.

/// Tokens that a recurrent layer looks at, as a window: the next one, and the state after the last.
const STATE_WINDOW: u32 = 2;

/// What the layers of a group keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupKind {
    /// Attention over all tokens; also latent attention, whose page holds one vector a token.
    Full,
    /// Attention over the token itself and the `window - 1` before it.
    SlidingWindow {
        /// Tokens looked at, at least 1.
        window: u32,
        /// Tokens below the window that are kept nevertheless.
        extra_retained: u32,
    },
    /// Attention within aligned chunks.
    Chunked {
        /// Tokens a chunk, at least 1.
        chunk: u32,
    },
    /// Attention over the tokens of an encoder, whose blocks a request holds from admission to the end.
    /// They are computed anew for every request and never cached. What the decoder's blocks owe to the
    /// encoder's input belongs into their extra keys.
    Cross {
        /// Encoder tokens a request, at most.
        encoder_tokens: u32,
    },
    /// One block a request that is written in a circle, such as the raw keys of the tokens that a
    /// compressor has not taken in yet; vLLM's `CircularBufferSpec`. It is never cached and does not
    /// shorten a hit: what it holds is computed anew from the last tokens.
    Ring,
    /// A recurrent state of fixed size. Its block size is the grain of lengths at which a checkpoint
    /// may be kept.
    State {
        /// State slots a request: 1, and 1 more for each speculative token.
        slots: u32,
    },
    /// A recurrent state in a block that is rewritten in place, with more blocks for the states
    /// after each draft token.
    MambaInPlace {
        /// Blocks for draft tokens.
        num_speculative: u32,
    },
    /// A recurrent state that moves to a new block at every block border, so that the old block can
    /// be kept as a checkpoint.
    MambaAligned {
        /// Blocks for draft tokens.
        num_speculative: u32,
        /// Tokens that a checkpoint written inside a chunk must be aligned to, relative to the
        /// chunk's start; `None` where the kernels write none.
        checkpoint_alignment: Option<u32>,
        /// Whether such checkpoints get a block of their own.
        has_checkpoint_blocks: bool,
    },
}

impl GroupKind {
    /// A sliding window that keeps nothing below itself.
    #[must_use]
    pub const fn sliding_window(window: u32) -> Self {
        Self::SlidingWindow { window, extra_retained: 0 }
    }

    /// Tokens below and at a position that the layers keep, where they keep a window.
    fn window(self) -> Option<u32> {
        match self {
            Self::SlidingWindow { window, extra_retained } => Some(window + extra_retained),
            Self::MambaInPlace { .. } | Self::MambaAligned { .. } => Some(STATE_WINDOW),
            Self::Full
            | Self::Chunked { .. }
            | Self::Cross { .. }
            | Self::Ring
            | Self::State { .. } => None,
        }
    }

    /// Leading tokens that nothing computed after `num_computed` tokens looks at.
    #[must_use]
    pub fn num_skipped_tokens(self, num_computed: u32) -> u32 {
        match self {
            Self::Chunked { chunk } => num_computed / chunk * chunk,
            _ => self.window().map_or(0, |window| (num_computed + 1).saturating_sub(window)),
        }
    }

    /// Tokens to compute until the first `num_skipped`, at least 1, are looked at no more.
    #[must_use]
    pub fn num_computed_until(self, num_skipped: u32) -> u32 {
        match self {
            Self::Chunked { chunk } => num_skipped.div_ceil(chunk).saturating_mul(chunk),
            _ => self.window().map_or(u32::MAX, |window| (num_skipped - 1).saturating_add(window)),
        }
    }

    /// Blocks in the table of a request of `num_tokens` tokens, those given back included.
    #[must_use]
    pub fn table_len(self, num_tokens: u64, block_size: u32) -> u64 {
        let by_position = num_tokens.div_ceil(u64::from(block_size));
        match self {
            Self::State { slots } => u64::from(slots),
            Self::Cross { encoder_tokens } => u64::from(encoder_tokens.div_ceil(block_size)),
            Self::Ring => 1,
            Self::MambaInPlace { num_speculative } | Self::MambaAligned { num_speculative, .. } => {
                by_position + u64::from(num_speculative)
            }
            _ => by_position,
        }
    }

    /// Tokens that the last of `num_tokens` tokens looks at, itself included; 0 where the layers keep
    /// states, whose slots hold no tokens.
    #[must_use]
    pub fn num_live_tokens(self, num_tokens: u32) -> u32 {
        match self {
            Self::Cross { encoder_tokens } => encoder_tokens,
            Self::Ring | Self::State { .. } => 0,
            _ => num_tokens - self.num_skipped_tokens(num_tokens.saturating_sub(1)),
        }
    }

    /// Most tokens held at once on the way to `num_tokens`, if at most `step` are computed in one
    /// step: those that the first token of a step looks at, and those of the step.
    #[must_use]
    pub fn peak_tokens(self, num_tokens: u64, step: u32) -> u64 {
        let looked_at = match self {
            Self::Cross { encoder_tokens } => return u64::from(encoder_tokens),
            Self::Ring | Self::State { .. } => return 0,
            Self::SlidingWindow { window, extra_retained } => window + extra_retained - 1,
            Self::Chunked { chunk } => chunk - 1,
            _ => return num_tokens,
        };
        (u64::from(looked_at) + u64::from(step)).min(num_tokens)
    }

    /// Most blocks that a request of `num_tokens` tokens holds at once, if at most `step` tokens
    /// are computed in one step.
    ///
    /// `h` tokens that begin `o` tokens into a block of `b` touch `ceil((o + h) / b)` blocks. A window
    /// begins at most `b - 1` into a block, a chunk at most `b - gcd(chunk, b)`.
    #[must_use]
    pub fn peak_blocks(self, num_tokens: u64, step: u32, block_size: u32) -> u64 {
        let offset = match self {
            Self::SlidingWindow { .. } => block_size - 1,
            Self::Chunked { chunk } => block_size - gcd(chunk, block_size),
            _ => return self.table_len(num_tokens, block_size),
        };
        let touched = u64::from(offset) + self.peak_tokens(num_tokens, step);
        self.table_len(num_tokens, block_size).min(touched.div_ceil(u64::from(block_size)))
    }

    /// Tokens that have room in a table of `num_blocks`.
    pub(crate) fn room(self, num_blocks: u32, block_size: u32) -> u32 {
        match self {
            Self::State { .. } | Self::Cross { .. } | Self::Ring => u32::MAX,
            Self::MambaInPlace { num_speculative } | Self::MambaAligned { num_speculative, .. } => {
                num_blocks.saturating_sub(num_speculative).saturating_mul(block_size)
            }
            _ => num_blocks.saturating_mul(block_size),
        }
    }

    /// Blocks that a hit needs of a group of windows, in the mean.
    pub(crate) fn mean_window_blocks(self, block_size: u32) -> u32 {
        match self {
            Self::SlidingWindow { window, .. } => window.saturating_sub(1).div_ceil(block_size),
            Self::Chunked { chunk } => (chunk / 2).div_ceil(block_size),
            _ => 0,
        }
    }

    pub(super) fn keeps_anything(self) -> bool {
        !matches!(
            self,
            Self::SlidingWindow { window: 0, .. }
                | Self::Chunked { chunk: 0 }
                | Self::State { slots: 0 }
                | Self::Cross { encoder_tokens: 0 }
        )
    }

    /// Whether the group holds a fixed number of blocks a request, whatever its length.
    pub(crate) fn is_constant(self) -> bool {
        matches!(self, Self::State { .. } | Self::Cross { .. } | Self::Ring)
    }

    /// Whether what the group computed can be hit by later requests.
    pub(crate) fn is_cacheable(self) -> bool {
        !matches!(self, Self::Cross { .. } | Self::Ring)
    }

    /// Tokens of the encoder that a request keeps.
    pub(crate) fn encoder_tokens(self) -> u32 {
        match self {
            Self::Cross { encoder_tokens } => encoder_tokens,
            _ => 0,
        }
    }

    pub(crate) fn is_full(self) -> bool {
        self == Self::Full
    }

    pub(crate) fn is_state(self) -> bool {
        matches!(self, Self::State { .. })
    }

    pub(crate) fn is_mamba(self) -> bool {
        matches!(self, Self::MambaInPlace { .. } | Self::MambaAligned { .. })
    }

    /// Whether it keeps recurrent states, by whichever rules.
    pub(crate) fn is_recurrent(self) -> bool {
        self.is_state() || self.is_mamba()
    }

    pub(crate) fn is_aligned(self) -> bool {
        matches!(self, Self::MambaAligned { .. })
    }

    /// Blocks for the states after draft tokens.
    pub(crate) fn num_speculative(self) -> u32 {
        match self {
            Self::MambaInPlace { num_speculative } | Self::MambaAligned { num_speculative, .. } => {
                num_speculative
            }
            _ => 0,
        }
    }

    /// Whether the layers look back over a part of the tokens only.
    pub(crate) fn is_window(self) -> bool {
        matches!(self, Self::SlidingWindow { .. } | Self::Chunked { .. })
    }

    /// Whether leading blocks are given back while a request runs.
    pub(crate) fn skips(self) -> bool {
        self.is_window() || self.is_mamba()
    }

    /// Whether a prefix that ends inside a block can be found.
    pub(crate) fn supports_fine_grained(self) -> bool {
        self.is_full() || self.is_mamba()
    }
}

/// Greatest common divisor.
pub(crate) fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks held while a request comes to `num_tokens` in steps of at most `step`, tried out.
    fn most_held(kind: GroupKind, num_tokens: u32, step: u32, block_size: u32) -> u64 {
        let after = |start: u32| {
            let ends = start + 1..=(start + step).min(num_tokens);
            let first = kind.num_skipped_tokens(start) / block_size;
            ends.map(|end| end.div_ceil(block_size) - first).max().unwrap_or(0)
        };
        u64::from((0..num_tokens).map(after).max().unwrap_or(0))
    }

    #[test]
    fn windows_and_moving_states_give_leading_blocks_back() {
        assert!(GroupKind::sliding_window(8).skips() && GroupKind::Chunked { chunk: 8 }.skips());
        assert!(!GroupKind::Full.skips());
    }

    #[test]
    fn the_most_blocks_are_those_that_some_way_to_the_end_holds() {
        for (size, block_size) in (1..=9).flat_map(|size| (1..=6).map(move |block| (size, block))) {
            for kind in [GroupKind::sliding_window(size), GroupKind::Chunked { chunk: size }] {
                for step in 1..=7 {
                    // Long enough for every place at which a window can begin in a block.
                    let num_tokens = size * block_size * 4 + step;
                    assert_eq!(
                        kind.peak_blocks(u64::from(num_tokens), step, block_size),
                        most_held(kind, num_tokens, step, block_size),
                        "{kind:?}, blocks of {block_size}, steps of {step}"
                    );
                }
            }
        }
    }

    #[test]
    fn live_tokens_are_those_that_the_last_token_looks_at() {
        let live = |kind: GroupKind| [0, 1, 4, 5, 9].map(|length| kind.num_live_tokens(length));
        assert_eq!(live(GroupKind::Full), [0, 1, 4, 5, 9]);
        assert_eq!(live(GroupKind::sliding_window(4)), [0, 1, 4, 4, 4]);
        assert_eq!(live(GroupKind::Chunked { chunk: 4 }), [0, 1, 4, 1, 1]);
        assert_eq!(live(GroupKind::Cross { encoder_tokens: 7 }), [7; 5]);
        assert_eq!(live(GroupKind::State { slots: 2 }), [0; 5]);
        assert_eq!(live(GroupKind::Ring), [0; 5]);
        for kind in [GroupKind::State { slots: 2 }, GroupKind::Ring] {
            assert_eq!(kind.peak_tokens(100, 4), 0, "slots hold no tokens");
        }
    }
}
