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
    pub const fn parent(&self) -> &Digest {
        &self.parent
    }

    /// Digests made so far.
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Tokens appended so far.
    pub fn num_tokens(&self) -> usize {
        self.num_blocks * self.block_size + self.pending.len()
    }

    /// How many digests an append of `num_tokens` tokens makes.
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

    /// Appends tokens. `hash` makes the digest of each block that they complete, from its index
    /// among these, the digest before it and its tokens.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Algorithm;

    fn seed() -> Digest {
        Digest::from([9; 16])
    }

    fn hash_pieces(
        algorithm: Algorithm,
        block_size: usize,
        num_lookahead_tokens: usize,
        pieces: &[Vec<i32>],
    ) -> Vec<Digest> {
        let mut hasher = BlockHasher::new(algorithm);
        let mut chain = HashChain::new(block_size, num_lookahead_tokens, seed()).unwrap();
        let mut digests = Vec::new();
        for piece in pieces {
            let expected = digests.len() + chain.num_new_blocks(piece.len());
            chain.append(&mut hasher, piece, &[], &mut digests).unwrap();
            assert_eq!(digests.len(), expected);
            assert_eq!(chain.num_blocks(), expected);
            assert_eq!(chain.parent(), digests.last().unwrap_or(&seed()));
        }
        assert_eq!(chain.num_tokens(), pieces.iter().map(Vec::len).sum::<usize>());
        digests
    }

    proptest! {
        #[test]
        fn appends_of_any_size_give_the_digests_of_the_whole(
            algorithm in proptest::sample::select(&Algorithm::ALL[..]),
            block_size in 1..20_usize,
            num_lookahead_tokens in 0..20_usize,
            pieces in proptest::collection::vec(proptest::collection::vec(any::<i32>(), 0..50), 0..8),
        ) {
            let whole = hash_pieces(algorithm, block_size, num_lookahead_tokens, &[pieces.concat()]);
            let parts = hash_pieces(algorithm, block_size, num_lookahead_tokens, &pieces);
            prop_assert_eq!(whole, parts);
        }

        #[test]
        fn a_token_changes_its_block_and_all_after_it_and_none_before(
            algorithm in proptest::sample::select(&Algorithm::ALL[..]),
            tokens in proptest::collection::vec(0..200_000_i32, 1..100),
            position in any::<proptest::sample::Index>(),
        ) {
            let position = position.index(tokens.len());
            let mut changed = tokens.clone();
            changed[position] += 1;
            let before = hash_pieces(algorithm, 8, 0, &[tokens]);
            let after = hash_pieces(algorithm, 8, 0, &[changed]);
            for (block, (a, b)) in before.iter().zip(&after).enumerate() {
                prop_assert_eq!(a == b, block < position / 8, "block {}", block);
            }
        }
    }

    #[test]
    fn a_failed_append_changes_nothing() {
        let mut hasher = BlockHasher::new(Algorithm::Sha256);
        let mut chain = HashChain::<i32>::new(2, 0, seed()).unwrap();
        let mut digests = Vec::new();
        chain.append(&mut hasher, &[1, 2, 3], &[], &mut digests).unwrap();
        let failed = chain.append_with(&[4, 5, 6], |index, _, _| match index {
            0 => Ok(seed()),
            _ => Err("no"),
        });
        assert_eq!(failed, Err("no"));
        let keys = [None];
        let error = chain.append(&mut hasher, &[4, 5, 6], &keys, &mut digests).unwrap_err();
        assert_eq!(error, HashError::ExtraKeyCount { expected: 2, actual: 1 });
        chain.append(&mut hasher, &[4, 5, 6], &[], &mut digests).unwrap();
        assert_eq!(digests, hash_pieces(Algorithm::Sha256, 2, 0, &[vec![1, 2, 3, 4, 5, 6]]));
    }

    #[test]
    fn blocks_without_tokens_are_refused() {
        let refused = HashChain::<i64>::new(0, 0, seed());
        assert_eq!(refused.unwrap_err(), HashError::ZeroBlockSize);
    }
}
