//! [`Event`]: what happens to an engine.

use serde::{Deserialize, Serialize};

use crate::script::Part;

/// An event. Requests are named by a number that is reduced to those that exist, so any sequence of events is a life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// A request arrives.
    Add {
        /// Which of three prompts it begins with; or, from 3 on, which of the requests that ended it continues.
        begins: u8,
        /// Tokens of that prompt.
        shared: u8,
        /// Tokens of its own.
        own: u8,
        /// Tokens to sample. An even number of them ends by a token, so that no step knows it before.
        answer: u8,
        /// Session, 0 for none, and hint of the client: `session + 4 * hint`. Also the priority.
        said: u8,
        /// Tokens of it that the other end of the connector has.
        reach: u8,
        /// Steps until its load ends, and `4` more for one that fails, `8` if it is known only when asked again.
        load: u8,
    },
    /// Steps are scheduled and computed.
    Steps {
        /// Number of steps.
        count: u8,
        /// How many drafts are right.
        luck: u8,
    },
    /// A client goes away.
    Abort {
        /// Number of the request.
        which: u8,
    },
    /// A running request is preempted between two steps.
    Preempt {
        /// Number of the request.
        which: u8,
    },
    /// A client says how a session goes on.
    Hint {
        /// Number of the session.
        session: u8,
        /// A place in [`hybrid_blocks::Hint::ALL`].
        hint: u8,
    },
    /// All running requests are preempted, and what is cached is dropped.
    Reset,
}

impl Event {
    /// Bytes an event is decoded from.
    pub const BYTES: usize = 8;
}

impl Part for Event {
    type Bytes = [u8; Self::BYTES];

    /// Events are as frequent as the first byte's ranges are wide.
    fn decode([kind, args @ ..]: Self::Bytes) -> Self {
        match kind % 32 {
            0..14 => Self::Steps { count: 1 + args[0] % 12, luck: args[1] },
            14..26 => Self::Add {
                begins: args[0] % 6,
                shared: args[1] % 40,
                own: 1 + args[2] % 24,
                answer: 1 + args[3] % 30,
                said: args[4] % 20,
                reach: args[5] % 64,
                load: args[6] % 16,
            },
            26..28 => Self::Abort { which: args[0] },
            28 => Self::Preempt { which: args[0] },
            29 | 30 => Self::Hint { session: 1 + args[0] % 3, hint: args[1] % 5 },
            _ => Self::Reset,
        }
    }
}
