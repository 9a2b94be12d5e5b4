//! [`Prompt`]: a prompt as the choice of places sees it.

/// A prompt whose checkpoints are to be placed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt {
    /// Tokens that it resumes from.
    pub start: u32,
    /// Tokens of the prompt.
    pub num_tokens: u32,
    /// Attention blocks of others go on up to here, but no state is there; 0 if that is not so.
    pub branch: u32,
    /// Prompts that left the one before it there already.
    pub num_left: u8,
    /// Class of the prompt.
    pub class: PromptClass,
}

/// How a prompt begins. It tells how likely others resume from it, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginning {
    /// With tokens that no prompt had before.
    #[default]
    Fresh,
    /// From a checkpoint that no prompt used before: it is the next turn of a conversation.
    Turn,
    /// As others do: from a checkpoint that several prompts use, or from a branch.
    Shared,
}

/// Prompts that are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptClass {
    /// A number of its client, or of a kind of clients; 0 if none is known.
    pub client: u16,
    /// How it begins.
    pub beginning: Beginning,
}

impl PromptClass {
    pub(super) fn index(self) -> usize {
        usize::from(self.client) * NUM_BEGINNINGS + self.beginning as usize
    }
}

pub(super) const NUM_BEGINNINGS: usize = 3;

/// The most tokens from which a prompt resumes that is sent again: its last token is always computed.
pub(super) fn last_resume(num_tokens: u32, alignment: u32) -> u32 {
    num_tokens.saturating_sub(1) / alignment * alignment
}
