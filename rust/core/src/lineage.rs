//! [`Lineage`]: what is known of checkpoints besides their content.

use crate::ids::BlockId;

/// Requests that make a checkpoint shared.
const SHARED: u8 = 2;

/// Who went on from each checkpoint of a pool, by block.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    num_uses: Vec<u8>,
    num_turns: Vec<u8>,
}

impl Lineage {
    pub(crate) fn new(num_ids: u32) -> Self {
        Self { num_uses: vec![0; num_ids as usize], num_turns: vec![0; num_ids as usize] }
    }

    /// A new checkpoint, left in the turn `num_turns` of a conversation. At a branch, two requests
    /// have come by already.
    pub(crate) fn leave(&mut self, block: BlockId, num_turns: u8, is_branch: bool) {
        self.num_uses[block.index()] = if is_branch { SHARED } else { 0 };
        self.num_turns[block.index()] = num_turns;
    }

    /// A request goes on from a checkpoint. Returns which turn of a conversation that is: 0 unless the
    /// request is the first to go on from there.
    pub(crate) fn go_on(&mut self, block: BlockId) -> u8 {
        let num_uses = &mut self.num_uses[block.index()];
        *num_uses = num_uses.saturating_add(1);
        if *num_uses == 1 { self.num_turns[block.index()].saturating_add(1) } else { 0 }
    }

    /// Whether several requests went on from a checkpoint, so that more may come.
    pub(crate) fn is_shared(&self, block: BlockId) -> bool {
        self.num_uses[block.index()] >= SHARED
    }

    /// A checkpoint was moved to another block.
    pub(crate) fn relocate(&mut self, src: BlockId, dst: BlockId) {
        self.num_uses[dst.index()] = self.num_uses[src.index()];
        self.num_turns[dst.index()] = self.num_turns[src.index()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_count_up_along_a_conversation_and_start_anew_where_it_branches() {
        let mut lineage = Lineage::new(4);
        let (prefix, first, second) = (BlockId(1), BlockId(2), BlockId(3));
        lineage.leave(prefix, 0, true);
        assert_eq!(lineage.go_on(prefix), 0);
        lineage.leave(first, 0, false);
        assert_eq!(lineage.go_on(first), 1);
        lineage.leave(second, 1, false);
        assert_eq!(lineage.go_on(second), 2);
        assert_eq!(lineage.go_on(first), 0, "the conversation branches");
        assert!(lineage.is_shared(prefix) && lineage.is_shared(first));
        assert!(!lineage.is_shared(second));
    }
}
