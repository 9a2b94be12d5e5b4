//! Chunked local attention: the next token looks at the tokens of its own chunk.

pub(super) fn num_skipped_tokens(chunk: u32, num_computed: u32) -> u32 {
    num_computed / chunk * chunk
}
