//! Full attention: every token looks at all tokens before it.

pub(super) fn num_skipped_tokens() -> u32 {
    0
}

/// Most tokens that are held at once on the way to `num_tokens`.
pub(super) fn span(num_tokens: u64) -> u64 {
    num_tokens
}
