//! [`HashChain`]: the digests of a growing token sequence.

use super::{BlockHasher, BlockKey, HashError, Token, Value};
use crate::Digest;

/// The state of one sequence's hashing: the last digest and the tokens that no digest covers yet.
///
/// However the sequence is cut into appends, the digests are the same.
#[derive(Clone, Debug)]
pub struct HashChain<T> {
    block_size: usize,
    num_lookahead_tokens: usize,
    parent: Digest,
    num_blocks: usize,
    pending: Vec<T>,
}

impl<T: Token> HashChain<T> {
    /// A chain that goes on after `parent`: the seed's digest, or that of the blocks so far.
    ///
    /// With `num_lookahead_tokens` > 0 a digest also covers that many tokens after its block, and
    /// comes only when they are there.
    ///
    /// # Errors
    /// [`HashError::ZeroBlockSize`]
    pub fn new(
        block_size: usize,
        num_lookahead_tokens: usize,
        parent: Digest,
    ) -> Result<Self, HashError> {
        if block_size == 0 {
            return Err(HashError::ZeroBlockSize);
        }
        Ok(Self { block_size, num_lookahead_tokens, parent, num_blocks: 0, pending: Vec::new() })
    }

    /// The last digest.
    #[must_use]
    pub const fn parent(&self) -> &Digest {
        &self.parent
    }

    /// Digests made so far.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Tokens appended so far.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.num_blocks * self.block_size + self.pending.len()
    }

    /// How many digests an append of `num_tokens` tokens makes.
    #[must_use]
    pub fn num_new_blocks(&self, num_tokens: usize) -> usize {
        let num_unhashed = self.pending.len().saturating_add(num_tokens);
        num_unhashed.saturating_sub(self.num_lookahead_tokens) / self.block_size
    }

    /// Appends tokens and puts the digests of the blocks that they complete at the end of `out`.
    ///
    /// `extras` holds one entry for each of these blocks, or nothing when none has extra keys.
    ///
    /// # Errors
    /// [`HashError::ExtraKeyCount`]
    pub fn append(
        &mut self,
        hasher: &mut BlockHasher,
        tokens: &[T],
        extras: &[Option<Value>],
        out: &mut Vec<Digest>,
    ) -> Result<(), HashError> {
        let expected = self.num_new_blocks(tokens.len());
        if !extras.is_empty() && extras.len() != expected {
            return Err(HashError::ExtraKeyCount { expected, actual: extras.len() });
        }
        out.reserve(expected);
        self.append_with(tokens, |index, parent, key| {
            let extra = extras.get(index).and_then(Option::as_ref);
            let digest = hasher.hash_block(parent, &BlockKey { extra, ..key });
            out.push(digest);
            Ok(digest)
        })
    }

    /// Appends tokens, with `hash` making the digest of each block that they complete out of its
    /// index among these, the digest before it and its tokens.
    ///
    /// # Errors
    /// The first error of `hash`; the chain is then as it was.
    pub fn append_with<E>(
        &mut self,
        tokens: &[T],
        mut hash: impl FnMut(usize, &Digest, BlockKey<'_, T>) -> Result<Digest, E>,
    ) -> Result<(), E> {
        let num_blocks = self.num_new_blocks(tokens.len());
        let num_pending = self.pending.len();
        // A prompt that starts a chain is hashed where it lies.
        let in_place = num_pending == 0;
        if !in_place {
            self.pending.extend_from_slice(tokens);
        }
        let sequence = if in_place { tokens } else { &self.pending };
        let mut parent = self.parent;
        let mut start = 0;
        for index in 0..num_blocks {
            let end = start + self.block_size;
            let key = BlockKey {
                tokens: &sequence[start..end],
                lookahead: &sequence[end..end + self.num_lookahead_tokens],
                extra: None,
            };
            match hash(index, &parent, key) {
                Ok(digest) => parent = digest,
                Err(error) => {
                    self.pending.truncate(num_pending);
                    return Err(error);
                }
            }
            start = end;
        }
        self.parent = parent;
        self.num_blocks += num_blocks;
        if in_place {
            self.pending.extend_from_slice(&tokens[start..]);
        } else {
            self.pending.drain(..start);
        }
        Ok(())
    }
}
