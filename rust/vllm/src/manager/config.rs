//! The core's configuration, as Python gives it.

use hybrid_blocks::vllm::{GroupConfig, Lookup, LookupGroup, ManagerConfig, ReleaseRules};
use hybrid_blocks::{CheckpointFormat, CheckpointPolicy, GroupId, PoolId};
use hybrid_blocks_interop::{core_error, invalid_argument};
use pyo3::prelude::*;

/// A group: kind as text, block size, whether hits drop blocks for a drafter, admission cap, whether new blocks are
/// zeroed, and its pools.
#[derive(FromPyObject)]
pub(super) struct GroupFields {
    kind: String,
    block_size: u32,
    use_eagle: bool,
    admission_cap: Option<u32>,
    zeroes_new_blocks: bool,
    is_cached: bool,
    pool: u32,
    kept_pool: Option<u32>,
}

/// Fields that the adapter reads once, when the engine starts.
#[derive(FromPyObject)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the engine")]
pub(super) struct ConfigFields {
    release_rules: Vec<String>,
    groups: Vec<GroupFields>,
    lookup: String,
    lookup_groups: Vec<(Vec<u32>, bool)>,
    fine_grained: bool,
    hash_block_size: u32,
    scheduler_block_size: u32,
    max_model_len: u32,
    enable_events: bool,
    enable_residency: bool,
    retention_interval: Option<u32>,
    num_reprefillable: u32,
    num_hash_lookahead: u32,
    drops_eagle_block: bool,
    drops_eagle_checkpoint: bool,
    shared_prefix_checkpoint: bool,
    watermark_blocks: u32,
    checkpoints: Option<String>,
    prefill_checkpoint_alignment: Option<u32>,
    pub(super) zeroes_blocks: bool,
}

impl GroupFields {
    fn group(&self) -> PyResult<GroupConfig> {
        let kind = self.kind.parse().map_err(core_error)?;
        Ok(GroupConfig {
            pool: PoolId(self.pool),
            kept: self.kept_pool.map(PoolId),
            use_eagle: self.use_eagle,
            admission_cap: self.admission_cap,
            zeroes_new_blocks: self.zeroes_new_blocks,
            is_cached: self.is_cached,
            ..GroupConfig::new(kind, self.block_size)
        })
    }
}

impl ConfigFields {
    /// The user's policy. Where it places none periodically, those of the engine's interval are more.
    fn checkpoints(&self) -> PyResult<Option<CheckpointPolicy>> {
        let Some(text) = &self.checkpoints else { return Ok(None) };
        let mut policy: CheckpointPolicy = text.parse().map_err(core_error)?;
        if self.groups.iter().all(|group| group.kept_pool.is_none()) {
            // The plan has no place for another format: no state is smaller in it, or it is not served here.
            policy.format = CheckpointFormat::Full;
        }
        let interval = self.retention_interval.filter(|&every| every > 0 && policy.every.is_none());
        let Some(every) = interval else { return Ok(Some(policy)) };
        let max_per_request = policy.max_per_request.saturating_add(self.max_model_len / every);
        Ok(Some(CheckpointPolicy { every: Some(every), max_per_request, ..policy }))
    }

    pub(super) fn config(&self) -> PyResult<ManagerConfig> {
        let spec = |(groups, use_eagle): &(Vec<u32>, bool)| LookupGroup {
            groups: groups.iter().copied().map(GroupId).collect(),
            use_eagle: *use_eagle,
        };
        let specs: Vec<_> = self.lookup_groups.iter().map(spec).collect();
        let lookup = match (self.lookup.as_str(), specs.as_slice()) {
            ("none", _) => Lookup::None,
            ("unitary", [one]) => Lookup::Unitary { use_eagle: one.use_eagle },
            ("hybrid", _) => Lookup::Hybrid { specs, fine_grained: self.fine_grained },
            (other, specs) => {
                return Err(invalid_argument(format_args!(
                    "no lookup {other:?} over {} specs",
                    specs.len()
                )));
            }
        };
        Ok(ManagerConfig {
            release: ReleaseRules::named(self.release_rules.iter().map(String::as_str))
                .map_err(core_error)?,
            groups: self.groups.iter().map(GroupFields::group).collect::<PyResult<_>>()?,
            lookup,
            hash_block_size: self.hash_block_size,
            scheduler_block_size: self.scheduler_block_size,
            max_model_len: self.max_model_len,
            enable_events: self.enable_events,
            enable_residency: self.enable_residency,
            retention_interval: self.retention_interval.filter(|_| self.checkpoints.is_none()),
            num_reprefillable: self.num_reprefillable,
            num_hash_lookahead: self.num_hash_lookahead,
            drops_eagle_block: self.drops_eagle_block,
            drops_eagle_checkpoint: self.drops_eagle_checkpoint,
            shared_prefix_checkpoint: self.shared_prefix_checkpoint,
            watermark_blocks: self.watermark_blocks,
            checkpoints: self.checkpoints()?,
            prefill_checkpoint_alignment: self.prefill_checkpoint_alignment,
        })
    }
}
