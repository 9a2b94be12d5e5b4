//! Sliding-window attention: the next token looks at itself and the `window - 1` tokens before it.

pub(super) fn num_skipped_tokens(window: u32, num_computed: u32) -> u32 {
    (num_computed + 1).saturating_sub(window)
}
