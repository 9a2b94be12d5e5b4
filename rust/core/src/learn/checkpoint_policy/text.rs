//! Policies as text, for command lines and environments: `fixed:128+1024/finish=false`.

use std::fmt;
use std::str::FromStr;

use super::value::{count, distances};
use super::{CheckpointPolicy, OPTIONS, OptionValue};
use crate::error::Error;

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
