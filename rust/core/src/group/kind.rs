//! The table of kinds: a row each, and which tokens and blocks a kind still needs.

#[cfg(test)]
mod tests;
mod text;

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

/// How many blocks a request of a length holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// One a position.
    ByPosition,
    /// As many for every length.
    Constant,
    /// One a position, and those for the states after draft tokens.
    Moving,
}

/// The part of a kind in a look-up: which blocks must be there so that a request can resume from a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Every block from the start.
    Full,
    /// The blocks that the next token looks at.
    Window,
    /// The state after the last token.
    State,
    /// Nothing: it is computed again, and never cached.
    None,
}

/// Which leading tokens nothing looks at any more.
enum Skip {
    Nothing,
    /// Those before the last so many, the next one included.
    Window(u32),
    /// Those before the chunk of the next.
    Chunk(u32),
}

/// A number that a kind has besides its name.
struct Parameter {
    name: &'static str,
    /// The least that it can be.
    least: u32,
    /// The number where none is given.
    default: Option<u32>,
}

/// Most numbers of a kind.
const MOST: usize = 3;

/// One row a kind.
struct Row {
    name: &'static str,
    parameters: &'static [Parameter],
    storage: Storage,
    role: Role,
    /// The kind of numbers, in the order of the parameters.
    make: fn([u32; MOST]) -> GroupKind,
}

const fn needed(name: &'static str) -> Parameter {
    Parameter { name, least: 1, default: None }
}

const fn optional(name: &'static str, default: u32) -> Parameter {
    Parameter { name, least: 0, default: Some(default) }
}

/// All kinds. A row's number is that of `GroupKind::entry`.
static ROWS: [Row; 8] = [
    Row {
        name: "full",
        parameters: &[],
        storage: Storage::ByPosition,
        role: Role::Full,
        make: |_| GroupKind::Full,
    },
    Row {
        name: "sliding_window",
        parameters: &[needed("window"), optional("extra_retained", 0)],
        storage: Storage::ByPosition,
        role: Role::Window,
        make: |[window, extra_retained, _]| GroupKind::SlidingWindow { window, extra_retained },
    },
    Row {
        name: "chunked",
        parameters: &[needed("window")],
        storage: Storage::ByPosition,
        role: Role::Window,
        make: |[chunk, ..]| GroupKind::Chunked { chunk },
    },
    Row {
        name: "cross",
        parameters: &[Parameter { name: "encoder_tokens", least: 0, default: None }],
        storage: Storage::Constant,
        role: Role::None,
        make: |[encoder_tokens, ..]| GroupKind::Cross { encoder_tokens },
    },
    Row {
        name: "ring",
        parameters: &[],
        storage: Storage::Constant,
        role: Role::None,
        make: |_| GroupKind::Ring,
    },
    Row {
        name: "state",
        parameters: &[optional("slots", 1)],
        storage: Storage::Constant,
        role: Role::State,
        make: |[slots, ..]| GroupKind::State { slots },
    },
    Row {
        name: "mamba_in_place",
        parameters: &[optional("num_speculative", 0)],
        storage: Storage::Moving,
        role: Role::State,
        make: |[num_speculative, ..]| GroupKind::MambaInPlace { num_speculative },
    },
    Row {
        name: "mamba_aligned",
        parameters: &[
            optional("num_speculative", 0),
            optional("checkpoint_alignment", 0),
            optional("has_checkpoint_blocks", 0),
        ],
        storage: Storage::Moving,
        role: Role::State,
        make: |[num_speculative, alignment, has_blocks]| GroupKind::MambaAligned {
            num_speculative,
            checkpoint_alignment: Some(alignment).filter(|&alignment| alignment > 0),
            has_checkpoint_blocks: has_blocks > 0,
        },
    },
];

impl GroupKind {
    /// The number of its row, and its own numbers in the order of the parameters.
    fn entry(self) -> (usize, [u32; MOST]) {
        match self {
            Self::Full => (0, [0; MOST]),
            Self::SlidingWindow { window, extra_retained } => (1, [window, extra_retained, 0]),
            Self::Chunked { chunk } => (2, [chunk, 0, 0]),
            Self::Cross { encoder_tokens } => (3, [encoder_tokens, 0, 0]),
            Self::Ring => (4, [0; MOST]),
            Self::State { slots } => (5, [slots, 0, 0]),
            Self::MambaInPlace { num_speculative } => (6, [num_speculative, 0, 0]),
            Self::MambaAligned { num_speculative, checkpoint_alignment, has_checkpoint_blocks } => {
                let alignment = checkpoint_alignment.unwrap_or(0);
                (7, [num_speculative, alignment, has_checkpoint_blocks.into()])
            }
        }
    }

    #[inline]
    fn row(self) -> &'static Row {
        &ROWS[self.entry().0]
    }

    /// How many blocks a request of a length holds.
    #[must_use]
    #[inline]
    pub fn storage(self) -> Storage {
        self.row().storage
    }

    /// Its part in a look-up.
    #[must_use]
    #[inline]
    pub fn role(self) -> Role {
        self.row().role
    }

    /// A sliding window that keeps nothing below itself.
    #[must_use]
    pub const fn sliding_window(window: u32) -> Self {
        Self::SlidingWindow { window, extra_retained: 0 }
    }

    fn skip(self) -> Skip {
        match self {
            Self::SlidingWindow { window, extra_retained } => Skip::Window(window + extra_retained),
            Self::Chunked { chunk } => Skip::Chunk(chunk),
            Self::MambaInPlace { .. } | Self::MambaAligned { .. } => Skip::Window(STATE_WINDOW),
            _ => Skip::Nothing,
        }
    }

    /// Leading tokens that nothing computed after `num_computed` tokens looks at.
    #[must_use]
    pub fn num_skipped_tokens(self, num_computed: u32) -> u32 {
        match self.skip() {
            Skip::Nothing => 0,
            Skip::Window(window) => (num_computed + 1).saturating_sub(window),
            Skip::Chunk(chunk) => num_computed / chunk * chunk,
        }
    }

    /// Tokens to compute until the first `num_skipped`, at least 1, are looked at no more.
    #[must_use]
    pub fn num_computed_until(self, num_skipped: u32) -> u32 {
        match self.skip() {
            Skip::Nothing => u32::MAX,
            Skip::Window(window) => (num_skipped - 1).saturating_add(window),
            Skip::Chunk(chunk) => num_skipped.div_ceil(chunk).saturating_mul(chunk),
        }
    }

    /// Blocks that a request holds whatever its length, 0 where that is no fixed number.
    #[must_use]
    pub fn constant_blocks(self, block_size: u32) -> u32 {
        match self {
            Self::State { slots } => slots,
            Self::Cross { encoder_tokens } => encoder_tokens.div_ceil(block_size),
            Self::Ring => 1,
            _ => 0,
        }
    }

    /// Blocks in the table of a request of `num_tokens` tokens, those given back included.
    #[must_use]
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
    #[must_use]
    pub fn num_live_tokens(self, num_tokens: u32) -> u32 {
        match self {
            Self::Cross { encoder_tokens } => encoder_tokens,
            _ if self.is_constant() => 0,
            _ => num_tokens - self.num_skipped_tokens(num_tokens.saturating_sub(1)),
        }
    }

    /// Most tokens held at once on the way to `num_tokens`, if at most `step` are computed in one
    /// step: those that the first token of a step looks at, and those of the step.
    #[must_use]
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

/// Greatest common divisor.
pub(crate) fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
