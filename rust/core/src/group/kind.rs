//! The table of kinds, a row each.

mod needed;
#[cfg(test)]
mod tests;
mod text;

/// Content that the layers of a group keep.
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
    /// Attention over the tokens of an encoder, whose blocks a request holds from admission to the
    /// end. They are computed again for every request and never cached. What the decoder's blocks
    /// owe to the encoder's input belongs into their extra keys.
    Cross {
        /// Encoder tokens a request, at most.
        encoder_tokens: u32,
    },
    /// One block a request that is written in a circle; vLLM's `CircularBufferSpec`. A compressor
    /// keeps the raw keys there that it has not taken in yet. It is never cached and does not
    /// shorten a hit: the worker computes its content again from the last tokens.
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
    #[inline]
    pub fn storage(self) -> Storage {
        self.row().storage
    }

    /// Returns the kind's part in a look-up.
    #[inline]
    pub fn role(self) -> Role {
        self.row().role
    }

    /// A sliding window that keeps nothing below itself.
    pub const fn sliding_window(window: u32) -> Self {
        Self::SlidingWindow { window, extra_retained: 0 }
    }
}

/// Greatest common divisor.
pub(crate) fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
