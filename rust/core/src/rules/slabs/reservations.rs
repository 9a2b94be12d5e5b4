//! Reservations that an admission leaves to others: blocks that running prompts were admitted with room for and do not hold
//! yet, or one of them would be preempted soon; and room for checkpoints, or they would be gone before their
//! requests end.

use crate::group::GroupKind;
use crate::rules::vllm::{AllocateArgs, KvCacheManager, num_missing};
use crate::store::Store;

impl<S: Store> KvCacheManager<S> {
    /// Notes that a request was admitted for its first `num_computed` tokens, with room for
    /// `num_tokens`.
    pub(crate) fn promise(&mut self, row: usize, num_computed: u32, num_tokens: u32) {
        let handle = self.engine.requests.handle(row);
        self.take_back_promise(handle);
        if num_computed < num_tokens && self.store().is_slabbed() {
            self.promised.push((handle, num_tokens));
        }
    }

    /// Blocks by pool that the admission of a whole prompt leaves to other requests than `row`: those that were
    /// promised to them and that they do not hold yet. Room for a checkpoint of each is added where that is worth
    /// more than to run one more request.
    pub(crate) fn left_to_others(&mut self, row: usize, args: &AllocateArgs<'_>) -> Vec<u64> {
        if !args.full_sequence_must_fit || !self.store().is_slabbed() {
            return Vec::new();
        }
        let mut missing = vec![0; self.store().num_pools() as usize];
        if let Some(keeper) = self.keeper.as_ref().filter(|_| self.config.checkpoints.is_some()) {
            let running = self.engine.requests.taken();
            let num_running =
                running.filter(|&other| other != row && self.holds_blocks(other)).count();
            if keeper.traffic.leaves_room(num_running) {
                for group in self.engine.cache.state_groups() {
                    missing[group.kept.index()] += num_running as u64;
                }
            }
        }
        let promised = std::mem::take(&mut self.promised);
        for (handle, num_tokens) in promised {
            let Some(other) = self.row(handle).filter(|&other| self.holds_blocks(other)) else {
                continue;
            };
            let mut is_kept = false;
            for ((group, cap), table) in self.groups().zip(self.engine.requests.tables(other)) {
                if !is_positional(group.kind()) {
                    continue;
                }
                let most = group.table_len(u64::from(num_tokens));
                is_kept |= most > table.blocks.len() as u64;
                if other != row {
                    missing[group.spec.pool.index()] += num_missing(table, most, cap);
                }
            }
            if is_kept {
                self.promised.push((handle, num_tokens));
            }
        }
        missing
    }

    /// Blocks that a call leaves to others. Where no other request holds any, a load has none to leave them to.
    pub(crate) fn reserved_blocks(&self, row: usize, args: &AllocateArgs<'_>) -> u64 {
        let is_load = args.is_load() && self.store().is_slabbed();
        if is_load && !self.others_hold_blocks(row) { 0 } else { args.reserved_blocks }
    }

    /// Takes a promise back: the request waits for its client, maybe for long.
    pub(crate) fn take_back_promise(&mut self, handle: u64) {
        self.promised.retain(|&(other, _)| other != handle);
    }
}

/// Whether a group has a block for that many tokens each.
fn is_positional(kind: GroupKind) -> bool {
    !kind.is_aligned() && !kind.is_constant()
}
