//! Chunked local attention: a token looks at the tokens of its own chunk.

pub(super) fn num_skipped_tokens(chunk: u32, num_computed: u32) -> u32 {
    num_computed / chunk * chunk
}

/// Tokens to compute until `num_skipped` are looked at no more.
pub(super) fn num_computed_until(chunk: u32, num_skipped: u32) -> u32 {
    num_skipped.div_ceil(chunk).saturating_mul(chunk)
}

/// Most tokens that are held at once when at most `step` are computed in a step.
pub(super) fn span(chunk: u32, step: u32) -> u64 {
    u64::from(chunk) + u64::from(step)
}
