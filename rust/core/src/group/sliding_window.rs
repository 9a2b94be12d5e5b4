//! Sliding-window attention: a token looks at itself and the `window - 1` tokens before it.

use super::search::{Found, Search};
use crate::store::Store;

/// Contiguous blocks that hold a window, and the one that a drafter drops.
pub(crate) fn window_blocks(window: u32, block_size: u32, use_eagle: bool) -> u32 {
    window.saturating_sub(1).div_ceil(block_size) + u32::from(use_eagle)
}

/// The last run of blocks that fills a window, or the first blocks if they are all there.
pub(crate) fn find<S: Store>(
    search: &Search<'_, S>,
    limit: u32,
    window: u32,
    drop_eagle: bool,
) -> Found {
    let block_size = search.block_size();
    let need = window_blocks(window, block_size, drop_eagle);
    let mut runs = search.none();
    let (mut length, mut start) = (0, 0);
    let mut filled = false;
    for block in (0..limit / block_size).rev() {
        let end = if drop_eagle { block } else { block + 1 };
        if length == 0 && !search.is_aligned(end) {
            continue;
        }
        if !search.push(search.digest_of(block), &mut runs) {
            runs.iter_mut().for_each(Vec::clear);
            length = 0;
            continue;
        }
        length += 1;
        if length >= need {
            start = block;
            filled = true;
            break;
        }
    }
    let mut num_blocks = start + length;
    if !filled {
        num_blocks = search.align_down(num_blocks);
    }
    if drop_eagle && num_blocks > 0 {
        num_blocks = search.align_down(num_blocks - 1);
    }
    let blocks = runs.into_iter().map(|run| Found::padded(start, run, num_blocks)).collect();
    Found { blocks, num_tokens: num_blocks * block_size }
}
