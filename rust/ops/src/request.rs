//! [`Request`]: what the model knows of one.

use hybrid_blocks::Digest;

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

/// Token ids, with what stands for the content that the first `n` of them leave behind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    ids: Vec<i32>,
    contents: Vec<u64>,
}

impl Tokens {
    pub(crate) fn push(&mut self, token: i32) {
        let before = self.contents.last().copied().unwrap_or(0xcbf2_9ce4_8422_2325);
        let token_word = u64::from(token.cast_unsigned()) + 1;
        self.contents.push((before ^ token_word).wrapping_mul(0x0100_0000_01b3));
        self.ids.push(token);
    }

    pub(crate) fn len(&self) -> u32 {
        self.ids.len() as u32
    }

    pub(crate) fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// What the first `n` tokens leave behind, `n` at least 1.
    pub(crate) fn content(&self, n: u32) -> u64 {
        self.contents[n as usize - 1]
    }

    /// The digest of the first `n` tokens. Digests differ in their last bytes only, so that a
    /// shortcut on leading bytes would be caught.
    pub(crate) fn digest(&self, n: u32) -> Digest {
        let mut bytes = [0xAB; 32];
        bytes[24..].copy_from_slice(&self.content(n).to_be_bytes());
        bytes.into()
    }

    /// Digests of the full hash blocks, from block `first` on.
    pub(crate) fn digests(&self, hash_block_size: u32, first: u32) -> Vec<Digest> {
        let full = self.len() / hash_block_size;
        (first..full).map(|block| self.digest((block + 1) * hash_block_size)).collect()
    }
}

impl FromIterator<i32> for Tokens {
    fn from_iter<T: IntoIterator<Item = i32>>(tokens: T) -> Self {
        let mut all = Self::default();
        tokens.into_iter().for_each(|token| all.push(token));
        all
    }
}
