//! Windows as checkpoints. A request that resumes after `n` tokens looks at the last window before them alone. So the
//! blocks of a window are kept where others are likely to go on, as states are. All others stay only while nothing
//! else needs their memory. Nothing is copied: the blocks stay where they are.

use super::checkpoint_policy::CheckpointPlan;
use crate::engine::cache::Cache;
use crate::error::Error;
use crate::group::{Group, Table};
use crate::ids::BlockId;
use crate::store::{EvictionOrder, Store};
use hybrid_blocks_hash::Digest;

/// Where the windows of one request are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) plan: CheckpointPlan,
    /// Tokens that the request resumed from.
    pub(crate) start: u32,
    /// The longest length at which others could resume the request if it ended now.
    pub(crate) end: u32,
}

impl Places {
    /// Whether some place other than the end needs the block at a position.
    pub(crate) fn need(&self, group: &Group, position: u32) -> bool {
        let block_size = group.spec.block_size;
        // The first periodic place whose window can reach back to the block.
        let from = (position + 1).saturating_sub(group.num_dropped).saturating_mul(block_size);
        let periodic =
            self.plan.every.and_then(|every| from.max(1).checked_next_multiple_of(every));
        let planned = self.plan.lengths.as_slice().iter().copied();
        position < self.start / block_size
            || planned.chain(periodic).any(|length| group.needed_at(length).contains(&position))
    }
}

/// A block that left its request's window, but that the window of its end needs.
#[derive(Clone, Copy, Debug)]
struct Passing {
    group: usize,
    position: u32,
    block: BlockId,
    /// The priority that it was given.
    priority: u64,
}

/// Blocks that left a request's windows.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    passing: Vec<Passing>,
}

impl Windows {
    /// Gives back what nothing computed after `num_processed` tokens looks at. What no place needs
    /// is evicted first.
    pub(crate) fn release_skipped<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        group: usize,
        table: &mut Table,
        num_processed: u32,
        places: &Places,
    ) -> Result<(), Error> {
        let spec = cache.groups[group];
        let pool = spec.spec.pool;
        if !spec.is_placed {
            return cache.release_skipped(group, table, num_processed, |store, _, blocks| {
                store.raise_to_default(pool, blocks);
            });
        }
        let needed = spec.needed_at(places.end);
        self.passing.retain(|it| {
            let is_needed = it.group != group || it.position >= needed.start;
            if !is_needed {
                cache.store.spend_cached(pool, it.block, it.priority);
            }
            is_needed
        });
        cache.release_skipped(group, table, num_processed, |store, first, blocks| {
            for (position, &block) in (first..).zip(blocks).filter(|(_, block)| !block.is_null()) {
                let is_kept = places.need(&spec, position);
                if !is_kept && position < needed.start {
                    store.spend(pool, block);
                    continue;
                }
                store.raise_to_default(pool, &[block]);
                if !is_kept {
                    let priority = store.priority(pool, block);
                    self.passing.push(Passing { group, position, block, priority });
                }
            }
        })
    }

    /// The request holds nothing any more.
    pub(crate) fn clear(&mut self) {
        self.passing.clear();
    }
}

/// Whether it can be known where windows are needed: where states are, or where prompts leave others' attention.
pub(crate) fn has_places(groups: &[Group]) -> bool {
    groups.iter().any(|group| group.kind().is_full() || group.kind().is_recurrent())
}

/// The tokens up to which a prompt shares attention, so that a shorter hit lacks checkpoints alone. It is `resumable`
/// where windows are kept wherever a hit may end, or no group keeps all of the attention.
pub(crate) fn reach_of_attention(groups: &[Group], attention: u32, resumable: u32) -> u32 {
    let is_placed = groups.iter().any(|group| group.is_placed);
    let is_known = is_placed && groups.iter().any(|group| group.kind().is_full());
    if is_known { attention } else { resumable }
}

/// A block that a hit needs, of the group with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needed {
    pub(crate) group: usize,
    pub(crate) position: u32,
    pub(crate) block: BlockId,
}

/// The blocks of the windows that a hit of `num_tokens` tokens needs, if all are there.
pub(crate) fn blocks_at<S: Store>(
    cache: &Cache<S>,
    digests: &[Digest],
    num_tokens: u32,
) -> Option<Vec<Needed>> {
    let mut found = Vec::new();
    for (number, group) in cache.groups.iter().enumerate().filter(|(_, group)| group.is_placed) {
        for position in group.needed_at(num_tokens) {
            let key = group.key_at(digests, (position + 1) * group.spec.block_size)?;
            let block = cache.store.get(group.spec.pool, &key)?;
            found.push(Needed { group: number, position, block });
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{GroupKind, GroupSpec};
    use crate::ids::{GroupId, PoolId};
    use crate::learn::places::Lengths;

    #[test]
    fn blocks_are_kept_before_places_and_as_far_as_the_hit() {
        let kind = GroupKind::sliding_window(32);
        let spec = GroupSpec { kind, block_size: 16, pool: PoolId(0) };
        let mut group = Group::new(GroupId(0), spec, 16).unwrap();
        let plan = CheckpointPlan {
            lengths: Lengths::from([160]),
            every: Some(512),
            ..CheckpointPlan::default()
        };
        let places = Places { plan, start: 64, end: 0 };
        let kept = |group: &Group| -> Vec<u32> {
            (0..70).filter(|&position| places.need(group, position)).collect()
        };
        assert_eq!(kept(&group), [0, 1, 2, 3, 8, 9, 30, 31, 62, 63]);
        group.num_dropped = 1;
        assert_eq!(kept(&group), [0, 1, 2, 3, 8, 9, 10, 30, 31, 32, 62, 63, 64]);
    }
}
