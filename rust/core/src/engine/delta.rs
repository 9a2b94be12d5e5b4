//! Changes of block tables, for whoever keeps a copy of them.

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

/// Changed entries of one group's tables, as runs of neighbours: run `i` is
/// `block_ids[offsets[i]..offsets[i + 1]]` and goes to row `rows[i]` from position `starts[i]` on.
/// No entry is in two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRuns {
    /// Row of each run.
    pub rows: Vec<u32>,
    /// First position of each run.
    pub starts: Vec<u32>,
    /// Where each run starts in `block_ids`, and the end of the last one.
    pub offsets: Vec<u32>,
    /// What stands there now.
    pub block_ids: Vec<u32>,
}

impl TableRuns {
    /// The runs of one group. Of several changes of an entry the last one counts.
    #[must_use]
    pub fn of(changes: &[TableChange], group: GroupId) -> Self {
        let mut own: Vec<&TableChange> =
            changes.iter().filter(|change| change.group == group).collect();
        // Stable, so that changes of one entry stay in order.
        own.sort_by_key(|change| (change.row, change.position));
        let mut runs = Self { rows: vec![], starts: vec![], offsets: vec![], block_ids: vec![] };
        let mut last = None;
        for &&TableChange { row, position, block, .. } in &own {
            match last {
                Some(same) if same == (row, position) => {
                    runs.block_ids.pop();
                }
                Some((last_row, before)) if (last_row, before + 1) == (row, position) => {}
                _ => {
                    runs.rows.push(row);
                    runs.starts.push(position);
                    runs.offsets.push(runs.block_ids.len() as u32);
                }
            }
            runs.block_ids.push(block.0);
            last = Some((row, position));
        }
        runs.offsets.push(runs.block_ids.len() as u32);
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(row: u32, group: u32, position: u32, block: u32) -> TableChange {
        TableChange { row, group: GroupId(group), position, block: BlockId(block) }
    }

    #[test]
    fn neighbours_form_runs_and_the_last_change_of_an_entry_counts() {
        let changes = [
            change(4, 0, 7, 70),
            change(2, 0, 0, 10),
            change(2, 1, 0, 99),
            change(2, 0, 1, 11),
            change(2, 0, 1, 12),
            change(2, 0, 3, 13),
            change(4, 0, 8, 0),
        ];
        let runs = TableRuns::of(&changes, GroupId(0));
        assert_eq!(runs.rows, [2, 2, 4]);
        assert_eq!(runs.starts, [0, 3, 7]);
        assert_eq!(runs.offsets, [0, 2, 3, 5]);
        assert_eq!(runs.block_ids, [10, 12, 13, 70, 0]);
    }

    #[test]
    fn nothing_changed_is_no_run() {
        let runs = TableRuns::of(&[], GroupId(0));
        assert_eq!((runs.rows.len(), runs.offsets.as_slice()), (0, &[0][..]));
    }
}
