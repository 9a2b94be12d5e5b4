//! Cross attention: a request holds the blocks of its encoder's tokens from admission to the end.
//! They are computed anew for every request and never enter the prefix cache. What the decoder's
//! blocks owe to the encoder's input belongs into their extra keys.

pub(super) fn table_len(encoder_tokens: u32, block_size: u32) -> u64 {
    u64::from(encoder_tokens.div_ceil(block_size))
}
