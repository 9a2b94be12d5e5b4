//! Policies as text, for command lines and environments: `fixed:128+1024/finish=false`.

use std::fmt;
use std::str::FromStr;

use super::{CheckpointFormat, CheckpointPolicy, OPTIONS};
use crate::error::Error;
use crate::placement::{Lengths, MAX_PLACES};

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// Whether.
    Flag(bool),
    /// A number.
    Count(u32),
    /// A number of tokens, if any.
    Tokens(Option<u32>),
    /// Distances in tokens, if any.
    Distances(Option<Lengths>),
    /// A format.
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

/// Each is eight times as far before the end of the prompt as the one before.
const GEOMETRIC: [u32; 3] = [128, 1_024, 8_192];

impl CheckpointPolicy {
    /// No checkpoints but periodic ones.
    fn none() -> Self {
        Self { prompt_end: false, branch: false, finish: false, ..Self::default() }
    }

    /// The policy that a name and its numbers stand for.
    fn named(text: &str) -> Option<Self> {
        Some(match text.split_once(':') {
            None if text == "learned" => Self::default(),
            None if text == "geometric" => {
                Self { prompt_margins: Some(GEOMETRIC.into()), ..Self::default() }
            }
            None if text == "none" => Self::none(),
            Some(("fixed", lengths)) => {
                Self { prompt_margins: Some(distances(lengths)?), ..Self::default() }
            }
            Some(("every", every)) => {
                Self { every: Some(count(every).filter(|&every| every > 0)?), ..Self::default() }
            }
            _ => return None,
        })
    }
}

/// A name, then options behind slashes: `fixed:128+1024/finish=false`.
impl FromStr for CheckpointPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = text.split('/');
        let Some(mut policy) = parts.next().and_then(Self::named) else {
            return Err(Error::InvalidArgument(format!(
                "'{text}' is no placement; known are learned, fixed:N[+N], geometric, every:N, \
                 none, in tokens, and /OPTION=VALUE behind them for {}",
                OPTIONS.map(|row| row.0).join(", ")
            )));
        };
        for option in parts {
            let Some((name, value)) = option.split_once('=') else {
                return Err(Error::InvalidArgument(format!(
                    "'{option}' lacks a value; write /OPTION=VALUE"
                )));
            };
            policy.set(name, value)?;
        }
        Ok(policy)
    }
}

/// The shortest text that stands for it.
impl fmt::Display for CheckpointPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut base = Self { prompt_margins: self.prompt_margins, ..Self::default() };
        if let Some(lengths) = self.prompt_margins {
            write!(f, "fixed:{}", OptionValue::Distances(Some(lengths)))?;
        } else if !(self.prompt_end || self.branch || self.finish) {
            base = Self::none();
            f.write_str("none")?;
        } else {
            f.write_str("learned")?;
        }
        let changed = self.options().zip(base.options()).filter(|(own, its)| own != its);
        changed.map(|(own, _)| own).try_for_each(|(name, value)| write!(f, "/{name}={value}"))
    }
}

/// Digits alone.
fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn distances(text: &str) -> Option<Lengths> {
    let lengths: Vec<u32> = text.split('+').map(count).collect::<Option<_>>()?;
    (lengths.len() <= MAX_PLACES).then(|| Lengths::from(&lengths[..]))
}
