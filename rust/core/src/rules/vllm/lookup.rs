//! The longest prefix that can be found, as vLLM's coordinators find it.

use super::config::{Lookup, ManagerConfig};
use crate::engine::lookup::{Candidate, Finder, GroupBlocks};
use crate::ids::GroupId;
use crate::store::Store;

/// Blocks of every group for a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComputedBlocks {
    /// By group.
    pub blocks: GroupBlocks,
    /// Tokens of the prefix.
    pub num_tokens: u32,
    /// Tokens after it that some group holds and another one does not.
    pub num_uncached: u32,
}

/// The longest prefix of at most `limit` tokens.
pub(super) fn longest_hit<S: Store>(
    config: &ManagerConfig,
    finder: &Finder<'_, S>,
    limit: u32,
) -> ComputedBlocks {
    match &config.lookup {
        Lookup::None => ComputedBlocks {
            blocks: vec![Vec::new(); config.groups.len()],
            ..ComputedBlocks::default()
        },
        Lookup::Unitary { use_eagle } => {
            let found = finder.find(&[GroupId(0)], limit, *use_eagle);
            ComputedBlocks { blocks: found.blocks, num_tokens: found.num_tokens, num_uncached: 0 }
        }
        Lookup::Hybrid { specs, .. } => {
            let mut candidate = Candidate::new(limit, specs.len());
            finder.reconcile(specs, |_| true, &mut candidate);
            let num_tokens = candidate.num_tokens;
            let num_uncached = candidate.longest.saturating_sub(num_tokens);
            let blocks = finder.agreed(specs, candidate);
            ComputedBlocks { blocks, num_tokens, num_uncached }
        }
    }
}

/// What each group would find on its own; its length beside it.
pub(super) fn hit_per_group<S: Store>(
    config: &ManagerConfig,
    finder: &Finder<'_, S>,
    limit: u32,
) -> (GroupBlocks, Vec<u32>) {
    let mut blocks = vec![Vec::new(); config.groups.len()];
    let mut lengths = vec![0; config.groups.len()];
    if let Lookup::Hybrid { specs, .. } = &config.lookup {
        for spec in specs {
            let limit = if spec.use_eagle { finder.with_eagle_margin(spec, limit) } else { limit };
            let found = finder.find(&spec.groups, limit, spec.use_eagle);
            for (group, own) in spec.groups.iter().zip(found.blocks) {
                blocks[group.index()] = own;
                lengths[group.index()] = found.num_tokens;
            }
        }
    }
    (blocks, lengths)
}
