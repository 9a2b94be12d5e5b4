//! [`KnownPrefixes`]: tokens that were hashed, and their digests.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::mem::size_of;

use rustc_hash::{FxBuildHasher, FxHasher};
use slab::Slab;

use super::{Token, TokenRow};
use crate::Digest;

/// Blocks in a row after `parent`: what one prompt had after what was known before it.
#[derive(Clone, Debug)]
struct Segment<N> {
    start: u64,
    parent: Digest,
    /// Tokens of the blocks, and those after them that the last digest covers too.
    tokens: Vec<i32>,
    digests: Vec<Digest>,
    names: N,
    last_use: u64,
}

impl<N> Segment<N> {
    /// Bytes of a segment of that many tokens and digests, each with a name of `name_bytes`.
    const fn bytes_of(num_tokens: usize, num_digests: usize, name_bytes: usize) -> usize {
        // Twice the segment itself, for its places in the two maps.
        2 * size_of::<Self>()
            + num_tokens * size_of::<i32>()
            + num_digests * (size_of::<Digest>() + name_bytes)
    }
}

/// The segments that a sequence began with, in its order.
#[derive(Debug, Default)]
pub struct KnownPath(Vec<usize>);

/// Tokens without extra keys that were hashed, and their digests: a prompt that begins with the same
/// tokens takes its digests from here.
///
/// Tokens are compared one by one, and the digest before them as a whole, so that the digests are
/// those that hashing would give. Memory is bounded; what was not used for longest goes first.
///
/// `N` are the caller's names for a run of digests, such as objects of another language. A prompt
/// that returns gets the same ones. Only tokens of 32 bits are remembered.
#[derive(Clone, Debug)]
pub struct KnownPrefixes<N = ()> {
    block_size: usize,
    num_lookahead_tokens: usize,
    max_bytes: usize,
    name_bytes: usize,
    num_bytes: usize,
    clock: u64,
    segments: Slab<Segment<N>>,
    /// By a hash of the digest before it and of what its first digest covers.
    starts: HashMap<u64, usize, FxBuildHasher>,
    by_use: BTreeMap<u64, usize>,
}

impl<N> KnownPrefixes<N> {
    /// Nothing is known yet; `max_bytes` bounds what will be, `name_bytes` of them for each name.
    ///
    /// `block_size` > 0 and `num_lookahead_tokens` are those of the [`HashChain`](super::HashChain)s.
    pub fn new(
        block_size: usize,
        num_lookahead_tokens: usize,
        max_bytes: usize,
        name_bytes: usize,
    ) -> Self {
        Self {
            block_size,
            num_lookahead_tokens,
            max_bytes,
            name_bytes,
            num_bytes: 0,
            clock: 0,
            segments: Slab::new(),
            starts: HashMap::default(),
            by_use: BTreeMap::new(),
        }
    }

    /// Bytes that tokens, digests and names take.
    pub const fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// Puts the digests of the blocks that `tokens` begin with, as far as they are known, at the
    /// end of `digests`. `parent` is the digest before the first. `name` gets the names of each run
    /// of digests, in their order, and how many of them count.
    pub fn find(
        &self,
        parent: Digest,
        tokens: &(impl TokenRow + ?Sized),
        digests: &mut Vec<Digest>,
        mut name: impl FnMut(&N, usize),
    ) -> KnownPath {
        let (mut parent, mut start, mut path) = (parent, 0, Vec::new());
        while let Some(number) = self.segment_at(&parent, tokens, start) {
            let segment = &self.segments[number];
            let known = self.num_blocks(tokens.common_prefix(start, &segment.tokens));
            let Some(last) = known.checked_sub(1) else { break };
            digests.extend_from_slice(&segment.digests[..known]);
            name(&segment.names, known);
            parent = segment.digests[last];
            start += known * self.block_size;
            path.push(number);
        }
        KnownPath(path)
    }

    /// Remembers the digests of a sequence. The first `num_known` were found along `path`; `rest` are
    /// the tokens of the others and those after them, `names` their names.
    pub fn remember<T: Token>(
        &mut self,
        path: &KnownPath,
        parent: Digest,
        rest: &[T],
        digests: &[Digest],
        num_known: usize,
        names: N,
    ) {
        let new = &digests[num_known..];
        if !new.is_empty() {
            let parent = num_known.checked_sub(1).map_or(parent, |last| digests[last]);
            let tokens = &rest[..new.len() * self.block_size + self.num_lookahead_tokens];
            self.insert(parent, tokens, new, names);
        }
        // A path that others follow goes after them.
        for &number in path.0.iter().rev() {
            self.touch(number);
        }
        while self.num_bytes > self.max_bytes
            && let Some((_, number)) = self.by_use.pop_first()
        {
            self.remove(number);
        }
    }

    fn insert<T: Token>(&mut self, parent: Digest, tokens: &[T], digests: &[Digest], names: N) {
        // The path would drive out all others and have no room even then.
        if Segment::<N>::bytes_of(tokens.len(), digests.len(), self.name_bytes) > self.max_bytes {
            return;
        }
        let narrow = tokens.iter().map(|&token| i32::try_from(token.into()));
        let Ok(narrow) = narrow.collect::<Result<Vec<_>, _>>() else { return };
        let Some(start) = self.start(&parent, tokens, 0) else { return };
        if let Some(&other) = self.starts.get(&start) {
            self.by_use.remove(&self.segments[other].last_use);
            self.remove(other);
        }
        let segment = Segment {
            start,
            parent,
            tokens: narrow,
            digests: digests.to_vec(),
            names,
            last_use: 0,
        };
        self.num_bytes += self.bytes_of(&segment);
        let number = self.segments.insert(segment);
        self.starts.insert(start, number);
        self.touch(number);
    }

    fn touch(&mut self, number: usize) {
        // The node may have gone since the path was walked.
        let Some(segment) = self.segments.get_mut(number) else { return };
        self.by_use.remove(&segment.last_use);
        self.clock += 1;
        segment.last_use = self.clock;
        self.by_use.insert(self.clock, number);
    }

    fn remove(&mut self, number: usize) {
        let segment = self.segments.remove(number);
        self.starts.remove(&segment.start);
        self.num_bytes -= self.bytes_of(&segment);
    }

    const fn bytes_of(&self, segment: &Segment<N>) -> usize {
        Segment::<N>::bytes_of(segment.tokens.len(), segment.digests.len(), self.name_bytes)
    }

    fn segment_at(
        &self,
        parent: &Digest,
        tokens: &(impl TokenRow + ?Sized),
        start: usize,
    ) -> Option<usize> {
        let number = *self.starts.get(&self.start(parent, tokens, start)?)?;
        (self.segments[number].parent == *parent).then_some(number)
    }

    /// A hash of a digest and of the tokens from `start` on that the one after it covers, if they are
    /// there.
    fn start(
        &self,
        parent: &Digest,
        tokens: &(impl TokenRow + ?Sized),
        start: usize,
    ) -> Option<u64> {
        let end = start + self.block_size + self.num_lookahead_tokens;
        if tokens.len() < end {
            return None;
        }
        let mut hasher = FxHasher::default();
        parent.hash(&mut hasher);
        for index in start..end {
            hasher.write_i64(tokens.get(index)?);
        }
        Some(hasher.finish())
    }

    const fn num_blocks(&self, num_tokens: usize) -> usize {
        num_tokens.saturating_sub(self.num_lookahead_tokens) / self.block_size
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Algorithm, BlockHasher, HashChain};

    const BLOCK_SIZE: usize = 4;

    fn hashed(parent: Digest, tokens: &[i64], num_lookahead_tokens: usize) -> Vec<Digest> {
        let mut digests = Vec::new();
        HashChain::new(BLOCK_SIZE, num_lookahead_tokens, parent)
            .unwrap()
            .append(&mut BlockHasher::new(Algorithm::Sha256), tokens, &[], &mut digests)
            .unwrap();
        digests
    }

    /// The digests themselves, for names.
    type Known = KnownPrefixes<Vec<Digest>>;

    fn known(num_lookahead_tokens: usize, max_bytes: usize) -> Known {
        KnownPrefixes::new(BLOCK_SIZE, num_lookahead_tokens, max_bytes, size_of::<Digest>())
    }

    /// Finds and remembers a sequence; returns how many of its digests were known.
    fn visit(known: &mut Known, parent: Digest, tokens: &[i64]) -> usize {
        let expected = hashed(parent, tokens, known.num_lookahead_tokens);
        let (mut digests, mut names) = (Vec::new(), Vec::new());
        let path = known.find(parent, tokens, &mut digests, |of_run: &Vec<_>, num_digests| {
            names.extend_from_slice(&of_run[..num_digests]);
        });
        let num_known = digests.len();
        assert_eq!(digests, expected[..num_known]);
        assert_eq!(names, digests);
        let names = expected[num_known..].to_vec();
        let rest = &tokens[num_known * BLOCK_SIZE..];
        known.remember(&path, parent, rest, &expected, num_known, names);
        num_known
    }

    fn common_blocks(left: &[i64], right: &[i64], num_lookahead_tokens: usize) -> usize {
        let common = left.iter().zip(right).take_while(|(left, right)| left == right).count();
        common.saturating_sub(num_lookahead_tokens) / BLOCK_SIZE
    }

    proptest! {
        #[test]
        fn a_prompt_finds_what_any_before_it_had_in_common(
            num_lookahead_tokens in 0..6_usize,
            prompts in proptest::collection::vec(
                (0..2_u8, proptest::collection::vec(0..2_i64, 0..40)),
                1..30,
            ),
        ) {
            let mut known = known(num_lookahead_tokens, usize::MAX);
            for (number, (seed, prompt)) in prompts.iter().enumerate() {
                let found = visit(&mut known, Digest::from([*seed; 16]), prompt);
                let before = prompts[..number].iter().filter(|(other, _)| other == seed);
                let most = before
                    .map(|(_, other)| common_blocks(prompt, other, num_lookahead_tokens))
                    .max();
                prop_assert_eq!(found, most.unwrap_or(0));
            }
        }

        #[test]
        fn memory_is_bounded_and_what_is_found_is_right(
            max_bytes in 0..4_000_usize,
            prompts in proptest::collection::vec(
                proptest::collection::vec(0..3_i64, 0..200),
                1..30,
            ),
        ) {
            let mut known = known(0, max_bytes);
            for prompt in &prompts {
                visit(&mut known, Digest::from([7; 16]), prompt);
                prop_assert!(known.num_bytes() <= max_bytes);
                let sum: usize = known.segments.iter().map(|(_, one)| known.bytes_of(one)).sum();
                prop_assert_eq!(sum, known.num_bytes());
                prop_assert_eq!(known.segments.len(), known.by_use.len());
                prop_assert_eq!(known.segments.len(), known.starts.len());
            }
        }
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let prompt = |first: i64| (first..first + 400).collect::<Vec<_>>();
        let parent = Digest::from([7; 16]);
        let mut known = known(0, 20_000);
        assert_eq!(
            [0, 1_000, 0, 2_000].map(|first| visit(&mut known, parent, &prompt(first))),
            [0, 0, 100, 0]
        );
        assert_eq!(visit(&mut known, parent, &prompt(0)), 100);
        assert_eq!(visit(&mut known, parent, &prompt(1_000)), 0);
    }

    #[test]
    fn memory_is_used_to_its_last_byte() {
        let prompt: Vec<_> = (0..400).collect();
        let num_bytes = Segment::<Vec<Digest>>::bytes_of(400, 100, size_of::<Digest>());
        for (max_bytes, found) in [(num_bytes, 100), (num_bytes - 1, 0)] {
            let mut known = known(0, max_bytes);
            visit(&mut known, Digest::from([7; 16]), &prompt);
            assert_eq!(visit(&mut known, Digest::from([7; 16]), &prompt), found);
        }
    }

    #[test]
    fn a_prompt_larger_than_the_memory_drives_out_nothing() {
        let parent = Digest::from([7; 16]);
        let small: Vec<_> = (0..400).collect();
        let large: Vec<_> = (1_000..9_000).collect();
        let mut known = known(0, 16_000);
        assert_eq!(visit(&mut known, parent, &small), 0);
        assert_eq!(visit(&mut known, parent, &large), 0);
        assert_eq!(visit(&mut known, parent, &large), 0);
        assert_eq!(visit(&mut known, parent, &small), 100);
    }

    #[test]
    fn tokens_of_another_parent_are_not_known() {
        let mut known = known(0, usize::MAX);
        let tokens: Vec<_> = (0..40).collect();
        visit(&mut known, Digest::from([1; 32]), &tokens);
        let mut other = [1; 32];
        other[31] = 2;
        assert_eq!(visit(&mut known, other.into(), &tokens), 0);
    }

    #[test]
    fn tokens_beyond_32_bits_are_not_remembered() {
        let mut known = known(0, usize::MAX);
        let mut tokens: Vec<_> = (0..40).collect();
        tokens[39] = i64::from(i32::MAX) + 1;
        for _ in 0..2 {
            assert_eq!(visit(&mut known, Digest::from([1; 32]), &tokens), 0);
        }
        tokens[39] = i64::from(i32::MIN);
        for num_known in [0, 10] {
            assert_eq!(visit(&mut known, Digest::from([1; 32]), &tokens), num_known);
        }
    }
}
