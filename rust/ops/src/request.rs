//! [`Request`]: what the model knows of one.

use hybrid_blocks::hash::{BlockHasher, HashChain};
use hybrid_blocks::{Digest, Hashing};

use crate::tokens::Tokens;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) handle: u64,
    pub(crate) tokens: Tokens,
    chain: HashChain<i32>,
    /// Digests of the full hash blocks, as Python's hasher makes them: the order of forgetting depends on them.
    pub(crate) digests: Vec<Digest>,
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
    /// A request that is to sample `output` tokens. It has none yet.
    pub(crate) fn new(id: String, hash_block_size: u32, output: u32) -> Self {
        let chain = HashChain::new(hash_block_size as usize, 0, Hashing::default().seed);
        Self {
            id,
            handle: 0,
            tokens: Tokens::default(),
            chain: chain.expect("a hash block has tokens"),
            digests: Vec::new(),
            output,
            running: false,
            computed: 0,
            allocated: 0,
            promised: None,
            entered: 0,
        }
    }

    /// Appends tokens. Returns the digests of the hash blocks that they fill.
    pub(crate) fn append(&mut self, hasher: &mut BlockHasher, tokens: &[i32]) -> &[Digest] {
        let num_before = self.digests.len();
        for &token in tokens {
            self.tokens.push(token);
        }
        let done = self.chain.append(hasher, tokens, &[], &mut self.digests);
        done.expect("no block has extra keys");
        &self.digests[num_before..]
    }

    pub(crate) fn num_tokens(&self) -> u32 {
        self.tokens.len()
    }

    /// Nothing of it is held any more.
    pub(crate) fn preempted(&mut self) {
        self.running = false;
        (self.computed, self.allocated, self.entered, self.promised) = (0, 0, 0, None);
    }
}
