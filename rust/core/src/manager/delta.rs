//! Changes of block tables, for whoever keeps a copy of them.

use std::ops::Range;

use crate::ids::{BlockId, GroupId};

/// One changed entry of a block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TableChange {
    /// The low 32 bits of the request's handle.
    pub row: u32,
    /// Group.
    pub group: GroupId,
    /// Position in the table.
    pub position: u32,
    /// What stands there now.
    pub block: BlockId,
}

/// Note what stands at `positions` of a table now.
pub(super) fn note(
    delta: &mut Vec<TableChange>,
    row: usize,
    group: GroupId,
    positions: Range<u32>,
    blocks: &[BlockId],
) {
    delta.extend(positions.map(|position| TableChange {
        row: row as u32,
        group,
        position,
        block: blocks[position as usize],
    }));
}
