//! [`Hint`]: what a client says of its conversation.

/// Hint of a client, or of a scheduler in its name, on the conversation that a request is a turn of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// No hint was given.
    #[default]
    None,
    /// Another turn will come.
    GoingOn,
    /// A tool runs, and a turn with its answer will come.
    Paused,
    /// The conversation is over.
    Done,
    /// The history was rewritten: the next turn repeats little of it.
    Compacted,
}

impl Hint {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::None, Self::GoingOn, Self::Paused, Self::Done, Self::Compacted];

    /// The name used in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::GoingOn => "going_on",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Compacted => "compacted",
        }
    }

    /// The chance of a next turn that is believed in before it was seen how right such hints are.
    pub(crate) const fn chance(self) -> Option<f64> {
        match self {
            Self::None => None,
            Self::GoingOn => Some(0.8),
            Self::Paused => Some(0.9),
            Self::Done => Some(0.1),
            Self::Compacted => Some(0.05),
        }
    }
}
