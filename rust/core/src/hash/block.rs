//! [`BlockHasher`]: one block's digest.

use super::algorithm::Encoding;
use super::pickle::Memo;
use super::{Algorithm, Token, Value, cbor, pickle};
use crate::Digest;

/// What a block's digest is made of, beside the digest of the tokens before it.
#[derive(Clone, Copy, Debug)]
pub struct BlockKey<'a, T> {
    /// The block's tokens.
    pub tokens: &'a [T],
    /// Tokens after the block that its content depends on too (a drafter's). When there are any,
    /// the extra keys are hashed as the tuple `(extra, *lookahead)`.
    pub lookahead: &'a [T],
    /// What else the block's content depends on: an adapter, an image, a salt. None is hashed as
    /// `None`.
    pub extra: Option<&'a Value>,
}

impl<'a, T> BlockKey<'a, T> {
    /// A block that depends on its tokens and those before it only.
    #[must_use]
    pub const fn new(tokens: &'a [T]) -> Self {
        Self { tokens, lookahead: &[], extra: None }
    }
}

/// Hashes blocks of any size. It remembers nothing but its buffers.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    algorithm: Algorithm,
    message: Vec<u8>,
    memo: Memo,
}

impl BlockHasher {
    /// A hasher of one algorithm.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, message: Vec::with_capacity(512), memo: Memo::default() }
    }

    /// The digest of the tokens up to the block's end, given that of those before it. The first
    /// block's parent is the digest of a seed.
    pub fn hash_block<T: Token>(&mut self, parent: &Digest, key: &BlockKey<'_, T>) -> Digest {
        let parent = self.algorithm.digest_bytes(parent);
        self.message.clear();
        match self.algorithm.encoding() {
            Encoding::Pickle => {
                pickle::encode_block(&mut self.message, &mut self.memo, parent, key);
            }
            Encoding::Cbor => cbor::encode_block(&mut self.message, parent, key),
        }
        self.algorithm.digest_of(&self.message)
    }
}
