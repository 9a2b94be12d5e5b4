//! Chunked local attention: a token looks at the tokens of its own chunk.

use super::search::{Found, Search};
use crate::ids::BlockId;
use crate::store::Store;

/// The longest prefix whose last chunk is there from its start; earlier chunks are not needed.
pub(crate) fn find<S: Store>(search: &Search<'_, S>, mut limit: u32, chunk: u32) -> Found {
    let block_size = search.block_size();
    let first_needed = |num_tokens: u32| num_tokens / chunk * chunk / block_size;
    loop {
        let first = first_needed(limit);
        let mut blocks = vec![vec![BlockId::NULL; first as usize]; search.groups.len()];
        let mut num_blocks = first;
        while num_blocks < limit / block_size
            && search.push(search.digest_of(num_blocks), &mut blocks)
        {
            num_blocks += 1;
        }
        let aligned = search.align_down(num_blocks);
        // A shorter prefix may end in an earlier chunk, whose blocks the search skipped.
        if aligned == num_blocks && first_needed(aligned * block_size) >= first {
            return Found { blocks, num_tokens: num_blocks * block_size };
        }
        limit = aligned * block_size;
    }
}
