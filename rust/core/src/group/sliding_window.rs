//! Sliding-window attention: a token looks at itself and the `window - 1` tokens before it.

pub(super) fn num_skipped_tokens(window: u32, num_computed: u32) -> u32 {
    (num_computed + 1).saturating_sub(window)
}

/// Tokens to compute until `num_skipped` are looked at no more.
pub(super) fn num_computed_until(window: u32, num_skipped: u32) -> u32 {
    (num_skipped - 1).saturating_add(window)
}

/// Most tokens that are held at once when at most `chunk` are computed in a step.
pub(super) fn span(window: u32, chunk: u32) -> u64 {
    u64::from(window) - 1 + u64::from(chunk)
}
