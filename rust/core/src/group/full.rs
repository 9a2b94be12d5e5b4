//! Full attention: every token looks at all tokens before it.

use super::search::{Found, Search};
use crate::store::Store;

/// The longest run of blocks from the start, and into the next block where that is possible.
pub(crate) fn find<S: Store>(search: &Search<'_, S>, limit: u32, drop_eagle: bool) -> Found {
    let (block_size, alignment) = (search.block_size(), search.alignment);
    let mut num_blocks = limit / block_size;
    let mut blocks: Vec<_> = search
        .groups
        .iter()
        .map(|&group| {
            let run = search.run(group, num_blocks);
            num_blocks = run.len() as u32;
            run
        })
        .collect();
    for list in &mut blocks {
        list.truncate(num_blocks as usize);
    }
    let mut num_tokens = num_blocks * block_size;
    if search.is_fine_grained() {
        let scale = block_size / alignment;
        let first = num_blocks * scale;
        let end = (first + scale - 1).min(limit / alignment).min(search.digests.len() as u32);
        if let Some(unit) = (first..end).rev().find(|&unit| search.push(unit as usize, &mut blocks))
        {
            num_tokens = (unit + 1) * alignment;
        }
    }
    if drop_eagle && num_tokens > 0 {
        num_tokens -= alignment.min(block_size);
    }
    num_tokens -= num_tokens % alignment;
    let keep = num_tokens.div_ceil(block_size) as usize;
    for list in &mut blocks {
        list.truncate(keep);
    }
    Found { blocks, num_tokens }
}
