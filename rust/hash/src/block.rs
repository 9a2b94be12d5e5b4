//! [`BlockHasher`]: one block's digest.

use super::algorithm::Encoding;
use super::pickle::Memo;
use super::{Algorithm, BlockKey, Digest, Token, cbor, pickle};

/// Hashes blocks of any size. It remembers nothing but its buffers.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    algorithm: Algorithm,
    message: Vec<u8>,
    memo: Memo,
}

impl BlockHasher {
    /// A hasher of one algorithm.
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
