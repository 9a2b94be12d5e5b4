//! [`Token`]: the integer types that token ids come in. [`TokenRow`]: where they stand in a row.

/// Tokens that are compared at once.
pub(super) const STRIDE: usize = 1 << 9;

/// A token id, as wide as its source stores it. Equal values hash equally, whatever their width.
pub trait Token: Copy + Eq + Into<i64> {}

impl Token for i32 {}
impl Token for u32 {}
impl Token for i64 {}

/// Tokens in a row, read where they lie.
#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
pub trait TokenRow {
    /// How many there are.
    fn len(&self) -> usize;

    /// The token at `index`; `None` where there is none, or something else.
    fn get(&self, index: usize) -> Option<i64>;

    /// How many tokens from `start` on are those of `known` from its start on.
    fn common_prefix(&self, start: usize, known: &[i32]) -> usize;
}

impl<T: Token> TokenRow for [T] {
    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> Option<i64> {
        self.get(index).map(|&token| token.into())
    }

    fn common_prefix(&self, start: usize, known: &[i32]) -> usize {
        let tokens = self.get(start..).unwrap_or_default();
        // Both sides of a stride are read to their ends: without a way out it compiles to wide compares.
        let are_equal = |(known, tokens): &(&[i32], &[T])| {
            let pairs = known.iter().zip(tokens.iter());
            pairs.fold(true, |equal, (&known, &token)| equal & (i64::from(known) == token.into()))
        };
        let strides = known.chunks_exact(STRIDE).zip(tokens.chunks_exact(STRIDE));
        let start = strides.take_while(are_equal).count() * STRIDE;
        let rest = known[start..].iter().zip(&tokens[start..]);
        start + rest.take_while(|&(&known, &token)| i64::from(known) == token.into()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_have_in_common_what_is_equal_from_their_start_on() {
        let known: Vec<i32> = (0..).take(3 * STRIDE + 5).collect();
        let tokens: Vec<i64> = known.iter().copied().map(i64::from).collect();
        assert_eq!(tokens.common_prefix(0, &known), tokens.len());
        for at in [0, 1, STRIDE - 1, STRIDE, 2 * STRIDE + 3, tokens.len() - 1] {
            assert_eq!(tokens.common_prefix(at, &known[at..]), tokens.len() - at);
            // Alike in the lower 32 bits, too.
            for other in [-1, tokens[at] + (1 << 32)] {
                let mut others = tokens.clone();
                others[at] = other;
                assert_eq!(others.common_prefix(0, &known), at);
            }
        }
        assert_eq!(tokens[..=STRIDE].common_prefix(0, &known), STRIDE + 1);
        assert_eq!(tokens.common_prefix(0, &known[..=STRIDE]), STRIDE + 1);
        assert_eq!(tokens.common_prefix(tokens.len() + 1, &known), 0);
    }
}
