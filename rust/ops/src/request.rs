//! [`Request`]: what the model knows of one.

use crate::tokens::Tokens;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) handle: u64,
    pub(crate) tokens: Tokens,
    /// Tokens still to be sampled.
    pub(crate) output: u32,
    pub(crate) running: bool,
    pub(crate) computed: u32,
    pub(crate) allocated: u32,
    /// The hit that the next admission resumes from, if a look-up found one.
    pub(crate) promised: Option<u32>,
    /// Tokens that were known when they got room: the next step computes them.
    pub(crate) entered: u32,
}

impl Request {
    pub(crate) fn num_tokens(&self) -> u32 {
        self.tokens.len()
    }

    /// Nothing of it is held any more.
    pub(crate) fn preempted(&mut self) {
        self.running = false;
        (self.computed, self.allocated, self.entered, self.promised) = (0, 0, 0, None);
    }
}
