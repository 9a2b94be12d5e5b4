//! Rings: one block a request that is written in a circle from admission to the end. vLLM calls the
//! kind `CircularBufferSpec`. A ring never enters the prefix cache and does not shorten a hit: what
//! it holds is computed anew from the last tokens.

pub(super) const TABLE_LEN: u64 = 1;
