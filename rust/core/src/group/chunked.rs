//! Chunked local attention: a token looks at the tokens of its own chunk.

use crate::engine::lookup::{Found, Search};
use crate::ids::BlockId;
use crate::store::Store;

pub(super) fn num_skipped_tokens(chunk: u32, num_computed: u32) -> u32 {
    num_computed / chunk * chunk
}

pub(super) fn num_computed_until(chunk: u32, num_skipped: u32) -> u32 {
    num_skipped.div_ceil(chunk).saturating_mul(chunk)
}

/// The longest prefix whose last chunk is there from its start; earlier chunks are not needed.
pub(crate) fn find<S: Store>(search: &Search<'_, S>, mut limit: u32, chunk: u32) -> Found {
    let block_size = search.block_size();
    loop {
        let first = limit / chunk * chunk / block_size;
        let mut blocks = vec![vec![BlockId::NULL; first as usize]; search.groups.len()];
        let mut num_blocks = first;
        while num_blocks < limit / block_size
            && search.push(search.digest_of(num_blocks), &mut blocks)
        {
            num_blocks += 1;
        }
        let aligned = search.align_down(num_blocks);
        // A shorter prefix may end in an earlier chunk, whose blocks were not looked for.
        let needed_from = num_skipped_tokens(chunk, aligned * block_size) / block_size;
        if aligned == num_blocks && needed_from >= first {
            return Found { blocks, num_tokens: num_blocks * block_size, num_present: num_blocks };
        }
        limit = aligned * block_size;
    }
}
