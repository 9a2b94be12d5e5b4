//! [`Op`]: what can be done to a manager.

use serde::{Deserialize, Serialize};

use crate::script::Part;

/// An operation. Requests are named by a number that is reduced to those that exist when the
/// operation runs, so any sequence of operations is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Registers a request: `shared` tokens of one of three prompts, `own` tokens after them, and
    /// `output` tokens that [`Op::Step`] samples when all others are computed.
    Add {
        /// Which of the three prompts.
        prompt: u8,
        /// Tokens of it.
        shared: u8,
        /// Tokens after them.
        own: u8,
        /// Tokens to sample.
        output: u8,
        /// Which of three sessions it is of; 0 for none.
        #[serde(default)]
        session: u8,
    },
    /// Says how the conversation of a request goes on.
    Hint {
        /// Number of the request.
        which: u8,
        /// A place in [`hybrid_blocks::Hint::ALL`].
        hint: u8,
    },
    /// Says how a session goes on, with or without a request of it.
    HintSession {
        /// Number of the session.
        session: u8,
        /// As in [`Op::Hint`].
        hint: u8,
    },
    /// Appends tokens to a request.
    Append {
        /// Number of the request.
        which: u8,
        /// Number of new tokens.
        num_tokens: u8,
    },
    /// Looks up the longest cached prefix of a request.
    Match {
        /// Number of the request.
        which: u8,
    },
    /// Makes room for new tokens of several requests, and for `lookahead` more of each.
    Allocate {
        /// Requests and new tokens.
        batch: Vec<(u8, u8)>,
        /// Further tokens of each, which may be rejected.
        lookahead: u8,
    },
    /// Computes all tokens that got room.
    Advance,
    /// A step of a scheduler: match, allocate up to the next boundary, compute, sample.
    Step {
        /// Number of the request.
        which: u8,
        /// Tokens to compute, at most.
        budget: u8,
    },
    /// Takes the blocks of requests away.
    Preempt {
        /// Numbers of the requests.
        which: Vec<u8>,
    },
    /// Ends requests and frees their blocks.
    Free {
        /// Numbers of the requests.
        which: Vec<u8>,
    },
    /// Runs the block copies that are due.
    TakeCopies,
    /// Lets time pass.
    Tick,
    /// Drops all cached content.
    Reset,
    /// Makes a call that must be refused and change nothing.
    Refuse {
        /// Fault of the call.
        refusal: Refusal,
        /// Number of the request.
        which: u8,
    },
}

/// Fault of a call that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// A handle that names no request.
    UnknownHandle,
    /// A request twice in a batch.
    TwiceInABatch,
    /// As many handles as counts there are not.
    LengthsDiffer,
    /// More computed tokens than have room.
    MoreThanThereIsRoomFor,
    /// Fewer computed tokens than got room.
    FewerThanGotRoom,
    /// A request that would never fit.
    TooLarge,
    /// A request id that is in use.
    IdInUse,
    /// Full hash blocks without digests.
    DigestsMissing,
    /// A group that does not exist.
    UnknownGroup,
}

impl Refusal {
    const ALL: [Self; 9] = [
        Self::UnknownHandle,
        Self::TwiceInABatch,
        Self::LengthsDiffer,
        Self::MoreThanThereIsRoomFor,
        Self::FewerThanGotRoom,
        Self::TooLarge,
        Self::IdInUse,
        Self::DigestsMissing,
        Self::UnknownGroup,
    ];
}

impl Op {
    /// Bytes an operation is decoded from.
    pub const BYTES: usize = 8;

    /// Most tokens of one request that one operation computes.
    pub const MAX_CHUNK: u32 = 12;
}

impl Part for Op {
    type Bytes = [u8; Self::BYTES];

    /// Operations are as frequent as the first byte's ranges are wide. Smaller bytes make simpler operations.
    fn decode(bytes: Self::Bytes) -> Self {
        let [kind, first, args @ ..] = bytes;
        let size = usize::from(first) % 3;
        let pairs = [[args[0], args[1]], [args[2], args[3]], [args[4], args[5]]];
        let batch = || pairs[..=size].iter().map(|&[which, n]| (which, n % 8)).collect();
        let several = || pairs[..=size].iter().map(|&[which, _]| which).collect();
        match kind % 40 {
            0..4 => Self::Add {
                prompt: first % 3,
                shared: args[0] % 24,
                own: args[1] % 9,
                output: args[2] % 9,
                session: args[3] % 4,
            },
            4..12 => Self::Step { which: first, budget: 1 + args[0] % (Self::MAX_CHUNK as u8 - 1) },
            12..18 => Self::Allocate { batch: batch(), lookahead: first / 3 % 3 },
            18..24 => Self::Advance,
            24..27 => Self::Append { which: first, num_tokens: 1 + args[0] % 3 },
            27..29 => Self::Match { which: first },
            29..31 => Self::Preempt { which: several() },
            31..33 => Self::Free { which: several() },
            33..35 => Self::TakeCopies,
            35..37 => Self::Tick,
            37 => Self::Reset,
            38 if first % 2 == 0 => Self::Hint { which: args[0], hint: args[1] % 5 },
            38 => Self::HintSession { session: 1 + args[0] % 3, hint: args[1] % 5 },
            _ => {
                let refusal = Refusal::ALL[usize::from(args[0]) % Refusal::ALL.len()];
                Self::Refuse { refusal, which: first }
            }
        }
    }
}
