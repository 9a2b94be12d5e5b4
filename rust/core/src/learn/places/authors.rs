//! [`Authors`]: which prompt computed each attention block.

use super::prompt::last_resume;
use super::{Again, Departure, PromptClass};
use crate::ids::BlockId;

/// The request that computed a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// Tokens of its prompt; 0 if no author is known.
    pub num_tokens: u32,
    /// The class of its prompt.
    pub class: PromptClass,
    /// Whether a copy of its state follows its answer.
    pub keeps_end: bool,
    /// Later prompts that left it after this block, up to [`Again::MOST`].
    pub num_left: u8,
    /// Prompts before it, see [`super::Placement::num_prompts`].
    pub number: u32,
}

impl Author {
    /// A prompt shares the author's tokens up to `reached`, and resumes from a state after `hit`. `num_before` others
    /// left it there.
    pub fn left(self, reached: u32, hit: u32, alignment: u32, num_before: Option<u8>) -> Leaving {
        let end = self.num_tokens / alignment * alignment;
        // Who leaves an answer before the copy of its end has to go back to the prompt.
        let is_short = if self.keeps_end { hit <= end } else { reached < end + MIN_ANSWER };
        let departure = if is_short {
            Departure::InPrompt(end.saturating_sub(reached))
        } else {
            Departure::InAnswer(reached.saturating_sub(end))
        };
        Leaving { author: self.class, number: self.number, departure, num_before }
    }
}

/// A prompt that leaves an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The class of the earlier prompt.
    pub author: PromptClass,
    /// Prompts before it.
    pub number: u32,
    /// Where it is left.
    pub departure: Departure,
    /// How many left it there before, up to [`Again::MOST`]; `None` where the block is gone that tells.
    pub num_before: Option<u8>,
}

/// The authors of a pool's blocks. 16 bytes a block.
#[derive(Clone, Debug, Default)]
pub struct Authors {
    of: Vec<Author>,
}

impl Authors {
    /// Records authors of `num_ids` blocks, all without one so far.
    pub fn new(num_ids: u32) -> Self {
        Self { of: vec![Author::default(); num_ids as usize] }
    }

    /// A request computed blocks.
    pub fn set(&mut self, blocks: &[BlockId], author: Author) {
        for &block in blocks {
            self.of[block.index()] = author;
        }
    }

    /// Prompts that left a block's author after it, up to [`Again::MOST`].
    pub fn num_left(&self, block: BlockId) -> u8 {
        self.of.get(block.index()).map_or(0, |author| author.num_left)
    }

    /// A prompt of `num_tokens` shares the blocks up to `block`, the last of `matched` tokens, and blocks that are
    /// gone up to `reached` tokens. It resumes from a state after `hit` tokens. Returns where it
    /// leaves the block's author, and how many others did so before.
    pub fn leave(
        &mut self,
        block: BlockId,
        matched: u32,
        reached: u32,
        hit: u32,
        alignment: u32,
        num_tokens: u32,
    ) -> Option<Leaving> {
        let author = self.of.get_mut(block.index()).filter(|author| author.num_tokens > 0)?;
        let num_before = (reached == matched).then_some(author.num_left);
        if let Some(num_before) = num_before {
            author.num_left = (num_before + 1).min(Again::MOST);
        }
        // The same prompt, sent again, shares all of it, though not the block that ends with its last token.
        let is_same = author.num_tokens == num_tokens;
        let shares_all = is_same && reached == last_resume(num_tokens, alignment);
        let reached = if shares_all { num_tokens } else { reached };
        Some(author.left(reached, hit, alignment, num_before))
    }
}

/// Tokens of an answer that have to be repeated until a copy of its end could serve: copies follow
/// every 64 tokens.
const MIN_ANSWER: u32 = 64;
