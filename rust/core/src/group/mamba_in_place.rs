//! Recurrent states by position, as vLLM looks for them, and those that stay in their block.

use crate::engine::lookup::{Found, Search};
use crate::ids::BlockId;
use crate::store::Store;

/// Only the state after the last token is read.
pub(super) fn num_skipped_tokens(num_computed: u32) -> u32 {
    num_computed.saturating_sub(1)
}

pub(super) fn num_computed_until(num_skipped: u32) -> u32 {
    num_skipped.saturating_add(1)
}

pub(super) fn table_len(num_tokens: u64, block_size: u32, num_speculative: u32) -> u64 {
    num_tokens.div_ceil(u64::from(block_size)) + u64::from(num_speculative)
}

/// The last state of an aligned prefix, behind null blocks.
pub(crate) fn find<S: Store>(search: &Search<'_, S>, limit: u32) -> Found {
    let (block_size, alignment) = (search.block_size(), search.alignment);
    let mut states = search.none();
    if search.is_fine_grained() {
        let end = (limit / alignment).min(search.digests.len() as u32);
        let unit = (0..end).rev().find(|&unit| search.push(unit as usize, &mut states));
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
    Found { blocks: blocks.collect(), num_tokens, num_present: position + 1 }
}
