//! Recurrent states by position, as vLLM looks for them, and those that stay in their block.

use super::search::{Found, Search};
use crate::ids::BlockId;
use crate::store::Store;

/// The last state of an aligned prefix, behind null blocks.
pub(crate) fn find<S: Store>(search: &Search<'_, S>, limit: u32) -> Found {
    let (block_size, alignment) = (search.block_size(), search.alignment);
    let mut states = search.none();
    if search.is_fine_grained() {
        let per_unit = alignment / search.hash_block_size;
        let end = (limit / alignment).min(search.digests.len() as u32 / per_unit);
        let last = |unit| ((unit + 1) * per_unit - 1) as usize;
        let unit = (0..end).rev().find(|&unit| search.push(last(unit), &mut states));
        return match unit {
            Some(unit) => {
                behind_nulls(unit / (block_size / alignment), states, (unit + 1) * alignment)
            }
            None => Found { blocks: search.none(), ..Found::default() },
        };
    }
    let mut positions = (0..limit / block_size).rev();
    let found = positions.find(|&position| {
        search.is_aligned(position + 1) && search.push(search.digest_of(position), &mut states)
    });
    match found {
        Some(position) => behind_nulls(position, states, (position + 1) * block_size),
        None => Found { blocks: states, ..Found::default() },
    }
}

fn behind_nulls(position: u32, states: Vec<Vec<BlockId>>, num_tokens: u32) -> Found {
    let blocks = states.into_iter().map(|state| Found::padded(position, state, position + 1));
    Found { blocks: blocks.collect(), num_tokens }
}
