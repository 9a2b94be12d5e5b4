//! Recurrent layers whose requests hold a fixed number of state slots, whatever their length.
//!
//! The slots are taken at admission and given back at the end; nothing in between releases them. A
//! prefix can be resumed only where a copy of the state at exactly its end was kept, a checkpoint.

use super::Table;
use crate::engine::lookup::{Found, Search};
use crate::ids::BlockId;
use crate::store::Store;

/// The slot that holds the state of the tokens computed so far.
pub(crate) fn slot(table: &Table) -> Option<BlockId> {
    table.blocks.first().copied()
}

/// The longest aligned prefix whose end has a checkpoint.
pub(crate) fn find<S: Store>(search: &Search<'_, S>, limit: u32) -> Found {
    let mut blocks = search.none();
    let scale = search.finder.alignment / search.block_size();
    let ends = (1..=limit / search.finder.alignment).rev();
    for end in ends {
        if search.push(search.digest_of(end * scale - 1), &mut blocks) {
            return Found { blocks, num_tokens: end * search.finder.alignment, num_present: 1 };
        }
    }
    Found { blocks, ..Found::default() }
}
