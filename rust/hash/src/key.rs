//! [`BlockKey`]: what one block's digest is made of.

use super::Value;

/// Input of a block's digest, besides the digest of the tokens before it.
#[derive(Clone, Copy, Debug)]
pub struct BlockKey<'a, T> {
    /// The block's tokens.
    pub tokens: &'a [T],
    /// Tokens after the block that its content depends on too (a drafter's). When there are any,
    /// the extra keys are hashed as the tuple `(extra, *lookahead)`.
    pub lookahead: &'a [T],
    /// Anything else the block's content depends on: an adapter, an image, a salt. None is hashed as `None`.
    pub extra: Option<&'a Value>,
}

impl<'a, T> BlockKey<'a, T> {
    /// A block that depends on its tokens and those before it only.
    pub const fn new(tokens: &'a [T]) -> Self {
        Self { tokens, lookahead: &[], extra: None }
    }
}
