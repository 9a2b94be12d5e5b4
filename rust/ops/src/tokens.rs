//! [`Tokens`]: token ids, with what a device keeps of them.

use std::fmt;
use std::ops::Range;

use hybrid_blocks::Digest;

/// Token ids, with what stands for the content that the first `n` of them leave behind.
#[derive(Clone, Default)]
pub(crate) struct Tokens {
    ids: Vec<i32>,
    contents: Vec<u64>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ids.fmt(f)
    }
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

    /// Returns the trace of the first `n` tokens, `n` at least 1. A change of any of them changes it.
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

    /// Digests of hash blocks.
    pub(crate) fn digests(&self, hash_block_size: u32, blocks: Range<u32>) -> Vec<Digest> {
        blocks.map(|block| self.digest((block + 1) * hash_block_size)).collect()
    }
}

impl FromIterator<i32> for Tokens {
    fn from_iter<T: IntoIterator<Item = i32>>(tokens: T) -> Self {
        let mut all = Self::default();
        tokens.into_iter().for_each(|token| all.push(token));
        all
    }
}

/// Returns the trace of the tokens of a digest: the inverse of [`Tokens::digest`].
pub(crate) fn content_of(digest: Digest) -> u64 {
    u64::from_be_bytes(digest.as_bytes()[24..].try_into().expect("they are 8 bytes"))
}
