//! Which tokens and blocks a kind still needs.

use super::{GroupKind, Role, Storage, gcd};

/// Tokens that a recurrent layer looks at, as a window: the next one, and the state after the last.
const STATE_WINDOW: u32 = 2;

/// Which leading tokens nothing looks at any more.
enum Skip {
    Nothing,
    /// Tokens before a window of that many tokens, which ends with the next one.
    Window(u32),
    /// Tokens before the chunk of the next one.
    Chunk(u32),
}

impl GroupKind {
    fn skip(self) -> Skip {
        match self {
            Self::SlidingWindow { window, extra_retained } => Skip::Window(window + extra_retained),
            Self::Chunked { chunk } => Skip::Chunk(chunk),
            Self::MambaInPlace { .. } | Self::MambaAligned { .. } => Skip::Window(STATE_WINDOW),
            _ => Skip::Nothing,
        }
    }

    /// Leading tokens that nothing computed after `num_computed` tokens looks at.
    pub fn num_skipped_tokens(self, num_computed: u32) -> u32 {
        match self.skip() {
            Skip::Nothing => 0,
            Skip::Window(window) => (num_computed + 1).saturating_sub(window),
            Skip::Chunk(chunk) => num_computed / chunk * chunk,
        }
    }

    /// Tokens to compute until the first `num_skipped`, at least 1, are looked at no more.
    pub fn num_computed_until(self, num_skipped: u32) -> u32 {
        match self.skip() {
            Skip::Nothing => u32::MAX,
            Skip::Window(window) => (num_skipped - 1).saturating_add(window),
            Skip::Chunk(chunk) => num_skipped.div_ceil(chunk).saturating_mul(chunk),
        }
    }

    /// Blocks that a request holds whatever its length, 0 where that is no fixed number.
    pub fn constant_blocks(self, block_size: u32) -> u32 {
        match self {
            Self::State { slots } => slots,
            Self::Cross { encoder_tokens } => encoder_tokens.div_ceil(block_size),
            _ => self.is_constant().into(),
        }
    }

    /// Blocks in the table of a request of `num_tokens` tokens, those given back included.
    pub fn table_len(self, num_tokens: u64, block_size: u32) -> u64 {
        let by_position = num_tokens.div_ceil(u64::from(block_size));
        match self.storage() {
            Storage::ByPosition => by_position,
            Storage::Constant => self.constant_blocks(block_size).into(),
            Storage::Moving => by_position + u64::from(self.num_speculative()),
        }
    }

    /// Tokens that the last of `num_tokens` tokens looks at, itself included; 0 where the layers keep
    /// states, whose slots hold no tokens.
    pub fn num_live_tokens(self, num_tokens: u32) -> u32 {
        match self {
            Self::Cross { encoder_tokens } => encoder_tokens,
            _ if self.is_constant() => 0,
            _ => num_tokens - self.num_skipped_tokens(num_tokens.saturating_sub(1)),
        }
    }

    /// Most tokens held at once on the way to `num_tokens`, if at most `step` are computed in one
    /// step: those that the first token of a step looks at, and those of the step.
    pub fn peak_tokens(self, num_tokens: u64, step: u32) -> u64 {
        let looked_at = match self {
            Self::Cross { encoder_tokens } => return u64::from(encoder_tokens),
            _ if self.is_constant() => return 0,
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
        match self.storage() {
            Storage::ByPosition => num_blocks.saturating_mul(block_size),
            Storage::Constant => u32::MAX,
            Storage::Moving => {
                num_blocks.saturating_sub(self.num_speculative()).saturating_mul(block_size)
            }
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

    pub(crate) fn keeps_anything(self) -> bool {
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
        self.storage() == Storage::Constant
    }

    /// Whether what the group computed can be hit by later requests.
    pub(crate) fn is_cacheable(self) -> bool {
        self.role() != Role::None
    }

    /// Tokens of the encoder that a request keeps.
    pub(crate) fn encoder_tokens(self) -> u32 {
        match self {
            Self::Cross { encoder_tokens } => encoder_tokens,
            _ => 0,
        }
    }

    pub(crate) fn is_full(self) -> bool {
        self.role() == Role::Full
    }

    pub(crate) fn is_state(self) -> bool {
        matches!(self, Self::State { .. })
    }

    pub(crate) fn is_mamba(self) -> bool {
        self.storage() == Storage::Moving
    }

    /// Whether it keeps recurrent states, by whichever rules.
    pub(crate) fn is_recurrent(self) -> bool {
        self.role() == Role::State
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
        self.role() == Role::Window
    }

    /// Whether leading blocks are given back while a request runs.
    pub(crate) fn skips(self) -> bool {
        !matches!(self.skip(), Skip::Nothing)
    }

    /// Whether a prefix that ends inside a block can be found.
    pub(crate) fn supports_fine_grained(self) -> bool {
        self.is_full() || self.is_mamba()
    }
}
