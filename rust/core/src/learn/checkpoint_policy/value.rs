//! [`OptionValue`]: the value of an option, and its text.

use std::fmt;

use super::CheckpointFormat;
use crate::learn::places::{Lengths, MAX_PLACES};

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// A yes or no.
    Flag(bool),
    /// A plain number.
    Count(u32),
    /// A number of tokens, if any.
    Tokens(Option<u32>),
    /// Distances in tokens, if any.
    Distances(Option<Lengths>),
    /// A checkpoint's format.
    Format(CheckpointFormat),
}

impl OptionValue {
    /// The value of the same option that `text` stands for.
    pub(super) fn read(self, text: &str) -> Option<Self> {
        match self {
            Self::Flag(_) => text.parse().ok().map(Self::Flag),
            Self::Count(_) => count(text).map(Self::Count),
            Self::Tokens(_) if text == "none" => Some(Self::Tokens(None)),
            Self::Tokens(_) => count(text).map(|it| Self::Tokens(Some(it).filter(|&it| it > 0))),
            Self::Distances(_) if text == "none" => Some(Self::Distances(None)),
            Self::Distances(_) => distances(text).map(|it| Self::Distances(Some(it))),
            Self::Format(_) => {
                let mut formats = CheckpointFormat::ALL.into_iter();
                formats.find(|it| it.name() == text).map(Self::Format)
            }
        }
    }

    pub(super) fn choices(self) -> String {
        match self {
            Self::Flag(_) => "true, false".into(),
            Self::Count(_) => "a number".into(),
            Self::Tokens(_) => "a number of tokens, none".into(),
            Self::Distances(_) => {
                format!("1 to {MAX_PLACES} distances in tokens, such as 128+1024; none learns them")
            }
            Self::Format(_) => CheckpointFormat::ALL.map(CheckpointFormat::name).join(", "),
        }
    }
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Count(count) | Self::Tokens(Some(count)) => count.fmt(f),
            Self::Tokens(None) | Self::Distances(None) => f.write_str("none"),
            Self::Distances(Some(lengths)) => {
                let lengths: Vec<_> = lengths.as_slice().iter().map(u32::to_string).collect();
                f.write_str(&lengths.join("+"))
            }
            Self::Format(format) => f.write_str(format.name()),
        }
    }
}

/// Reads digits alone.
pub(super) fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

pub(super) fn distances(text: &str) -> Option<Lengths> {
    let lengths: Vec<u32> = text.split('+').map(count).collect::<Option<_>>()?;
    (lengths.len() <= MAX_PLACES).then(|| Lengths::from(&lengths[..]))
}
