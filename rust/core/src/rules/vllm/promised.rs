//! What running prompts were admitted with room for and do not hold yet. A prompt takes its blocks chunk by
//! chunk; whoever is admitted meanwhile leaves them, or one of the two would be preempted soon.

use super::KvCacheManager;
use crate::group::GroupKind;
use crate::store::Store;

impl<S: Store> KvCacheManager<S> {
    /// Note that a request was admitted for its first `num_computed` tokens, with room for `num_tokens`.
    pub(super) fn promise(&mut self, row: usize, num_computed: u32, num_tokens: u32) {
        let handle = self.engine.requests.handle(row);
        self.take_back_promise(handle);
        if num_computed < num_tokens && self.store().is_slabbed() {
            self.promised.push((handle, num_tokens));
        }
    }

    /// Blocks by pool that were promised to others than `row`, and are not theirs yet.
    pub(super) fn num_promised(&mut self, row: usize) -> Vec<u64> {
        if self.promised.is_empty() {
            return Vec::new();
        }
        let mut missing = vec![0; self.store().num_pools() as usize];
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
                let held = table.blocks.len() as u64;
                // A window's blocks are given back on the way.
                let num_missing = most.saturating_sub(held).min(
                    cap.map_or(u64::MAX, |cap| u64::from(cap).saturating_sub(table.num_held())),
                );
                is_kept |= most > held;
                if other != row {
                    missing[group.spec.pool.index()] += num_missing;
                }
            }
            if is_kept {
                self.promised.push((handle, num_tokens));
            }
        }
        missing
    }

    /// Take a promise back: the request waits for its client, maybe for long.
    pub(super) fn take_back_promise(&mut self, handle: u64) {
        self.promised.retain(|&(other, _)| other != handle);
    }
}

/// Whether a group has a block for so many tokens each.
fn is_positional(kind: GroupKind) -> bool {
    !kind.is_aligned() && !matches!(kind, GroupKind::Cross { .. } | GroupKind::Ring)
}
