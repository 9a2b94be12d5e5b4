//! Where checkpoints, copies of recurrent states, are kept.

mod format;
#[cfg(test)]
mod tests;
mod text;
mod value;

pub use format::CheckpointFormat;
pub use value::OptionValue;

use crate::error::Error;
use crate::learn::places::{Author, Lengths, Prompt, PromptClass};

/// At which lengths a request leaves checkpoints. Lengths are rounded down to the grain at which
/// every group can be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// At the end of the prompt: the next turn of a conversation resumes there.
    pub prompt_end: bool,
    /// How far before the end of the prompt, in tokens; `None`, to learn it from where later
    /// prompts leave earlier ones. Distances longer than the prompt do not count. The shortest is
    /// at most an eighth of the prompt, so that short prompts keep a checkpoint too.
    pub prompt_margins: Option<Lengths>,
    /// Where the prompt leaves what an earlier request left of attention blocks but not of states:
    /// others are likely to leave it there too.
    pub branch: bool,
    /// At the end of a request: the next turn repeats the answer. While a request generates, one
    /// copy follows its state from border to border, and replaces the one before; where
    /// the end falls on the grain the slot itself is kept. Where next turns turn out not to repeat
    /// answers, none is kept.
    pub finish: bool,
    /// Generated tokens between two moves of that copy. Every token reads and writes the whole state,
    /// so that a copy every 64 adds 1/64 to that traffic.
    pub follow_every: u32,
    /// Every such number of tokens.
    pub every: Option<u32>,
    /// Most checkpoints a request leaves, the one at its end not counted. Periodic ones leave room
    /// for the others.
    pub max_per_request: u32,
    /// Prompt tokens that take as long as one more step of few tokens. A checkpoint that ends a chunk has to save that
    /// many, as its request has its first token a step later. `None` where the engine does not know.
    pub step_tokens: Option<u32>,
    /// How they are stored. In another format than that of running states they lie in a pool of their own.
    pub format: CheckpointFormat,
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self {
            prompt_end: true,
            prompt_margins: None,
            branch: true,
            finish: true,
            follow_every: 64,
            every: None,
            max_per_request: 6,
            step_tokens: None,
            format: CheckpointFormat::Full,
        }
    }
}

/// Checkpoints that one request is to leave, and how it resumes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckpointPlan {
    /// Where the prompt leaves checkpoints, ascending.
    pub(crate) lengths: Lengths,
    /// Which of them is the end of attention blocks found without a state, 0 for none.
    pub(crate) branch: u32,
    /// The class of the prompt.
    pub(crate) class: PromptClass,
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: u32,
    /// Checkpoints left since admission.
    pub(crate) num_taken: u32,
    /// Whether the end of the request is to be kept.
    pub(crate) end: bool,
    /// Tokens between two that are left beside those, `None` for none.
    pub(crate) every: Option<u32>,
    /// When that was planned, in lives of cached content.
    pub(crate) planned_at: f64,
    /// Prompts before it.
    pub(crate) number: u32,
}

impl CheckpointPlan {
    /// Who computes the blocks that the request computes.
    pub(crate) fn author(&self) -> Author {
        Author {
            num_tokens: self.prompt_tokens,
            class: self.class,
            keeps_end: self.end,
            num_left: 0,
            number: self.number,
        }
    }
}

impl CheckpointPolicy {
    /// The places of a prompt, where they are not learned but given.
    pub(crate) fn fixed(&self, margins: Lengths, prompt: Prompt, alignment: u32) -> Lengths {
        let Prompt { num_tokens, branch, start, .. } = prompt;
        let mut lengths = Lengths::default();
        let down = |length: u32| length / alignment * alignment;
        let shortest = margins.as_slice().first().copied().unwrap_or(0);
        let first = shortest.min(num_tokens / 8);
        let further = margins.as_slice().iter().skip(1).filter(|&&margin| margin < num_tokens);
        if self.prompt_end {
            for &margin in std::iter::once(&first).chain(further) {
                lengths.insert(down(num_tokens - margin));
            }
        }
        // Attention blocks that go on no further than this were the margin of an earlier prompt.
        let margin = shortest.min(branch / 8).next_multiple_of(alignment);
        if self.branch && branch > start.saturating_add(margin) {
            lengths.insert(branch);
        }
        lengths
    }

    /// The first length after `num_computed` at which a checkpoint is wanted. `alignment` is the
    /// grain.
    pub(crate) fn next(
        &self,
        plan: &CheckpointPlan,
        num_computed: u32,
        alignment: u32,
    ) -> Option<u32> {
        let planned = plan.lengths.as_slice();
        let ahead = &planned[planned.partition_point(|&at| at <= num_computed)..];
        let left = self.max_per_request.saturating_sub(plan.num_taken);
        let periodic = self
            .periodic(alignment)
            .filter(|_| left as usize > ahead.len())
            .and_then(|every| (num_computed / every + 1).checked_mul(every));
        ahead.first().copied().into_iter().chain(periodic).min().filter(|_| left > 0)
    }

    /// Whether the copy that follows the generation moves up to `num_computed` tokens.
    pub(crate) fn follows(&self, plan: &CheckpointPlan, num_computed: u32, alignment: u32) -> bool {
        plan.end
            && num_computed > plan.prompt_tokens
            && num_computed.is_multiple_of(self.follow_period(alignment))
    }

    /// Tokens between two periodic checkpoints.
    pub(crate) fn periodic(&self, alignment: u32) -> Option<u32> {
        self.every.map(|every| period(every, alignment))
    }

    /// Tokens between two moves of the copy that follows the generation.
    pub(crate) fn follow_period(&self, alignment: u32) -> u32 {
        period(self.follow_every, alignment)
    }
}

/// The first multiple of `alignment` from `every` on, or the last one that there is.
fn period(every: u32, alignment: u32) -> u32 {
    let rounded = every.max(1).checked_next_multiple_of(alignment);
    rounded.unwrap_or(u32::MAX / alignment * alignment)
}

/// One row an option: its name, its value, and how a value is set.
type Row =
    (&'static str, fn(&CheckpointPolicy) -> OptionValue, fn(&mut CheckpointPolicy, OptionValue));

macro_rules! row {
    ($name:literal, $field:ident, $kind:ident) => {
        (
            $name,
            |policy| OptionValue::$kind(policy.$field),
            |policy, value| {
                if let OptionValue::$kind(value) = value {
                    policy.$field = value;
                }
            },
        )
    };
}

/// The options by the names that users give them.
const OPTIONS: [Row; 9] = [
    row!("prompt_end", prompt_end, Flag),
    row!("prompt_margin", prompt_margins, Distances),
    row!("branch", branch, Flag),
    row!("finish", finish, Flag),
    row!("follow_every", follow_every, Count),
    row!("every", every, Tokens),
    row!("max_per_request", max_per_request, Count),
    row!("step_tokens", step_tokens, Tokens),
    row!("format", format, Format),
];

impl CheckpointPolicy {
    /// All options by name.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, OptionValue)> {
        OPTIONS.iter().map(|(name, value, _)| (*name, value(self)))
    }

    /// Sets the option `name` to the value that `text` stands for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown option, or a value that it cannot have.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let Some((name, value, set)) = OPTIONS.iter().find(|row| row.0 == name) else {
            return Err(Error::InvalidArgument(format!(
                "'{name}' is no option of a placement; there are {}",
                OPTIONS.map(|row| row.0).join(", ")
            )));
        };
        let value = value(self);
        let Some(read) = value.read(text) else {
            let choices = value.choices();
            return Err(Error::InvalidArgument(format!("{name}='{text}': use {choices}")));
        };
        set(self, read);
        Ok(())
    }
}
