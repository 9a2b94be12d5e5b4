//! [`Setup`]: the groups, memory and options of an engine.

use hybrid_blocks::vllm::{GroupConfig, Lookup, LookupGroup, ManagerConfig};
use hybrid_blocks::{BlockStore, GroupId, GroupKind, PoolId, Storage};
use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::event::Event;
use crate::script::{Part, Setting};
use crate::setup::{Group, INSIDE, format_text, placement};
use crate::world::Check;

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Groups, by id; one of full attention first.
    pub groups: Vec<Group>,
    /// Tokens a digest stands for.
    pub hash_block_size: u32,
    /// Tokens of the longest request.
    pub max_len: u32,
    /// Tokens of a step.
    pub budget: u32,
    /// Slabs of the arena with the null slab; blocks with the null block where there are no slabs.
    pub num_slabs: u32,
    /// Blocks a slab of each pool; empty for one pool that owns all blocks, as at level `manager`.
    pub blocks_per_slab: Vec<u32>,
    /// Where states and windows are kept, as `CheckpointPolicy` reads it; none for vLLM's own rules.
    pub placement: Option<String>,
    /// Drafts a step.
    pub num_drafts: u32,
    /// Whether a step is scheduled before the one before it has ended.
    pub is_async: bool,
    /// Whether a request is admitted only if all its tokens have room.
    pub reserves_all: bool,
    /// Whether requests have priorities, and those of a low one are preempted first.
    pub has_priorities: bool,
    /// Where else tokens come from.
    pub connector: Connector,
    /// Distances inside a chunk at which a worker can keep states; none where chunks end for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_checkpoint_alignment: Option<u32>,
}

/// Way in which a KV connector loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connector {
    /// There is none.
    None,
    /// The connector loads before the step that reads the loaded tokens.
    InStep,
    /// The connector loads beside steps. A request whose load fails ends.
    Beside,
    /// The connector loads beside steps. A request whose load fails computes its tokens.
    BesideOrComputed,
}

/// Pools of attention.
const MOST_POOLS: u32 = 2;

impl Setup {
    /// Bytes a setup is decoded from.
    pub const BYTES: usize = 32;

    /// Most requests that run at a time.
    pub(super) const MOST_RUNNING: usize = 6;

    /// Slabs that the longest request fills.
    fn enough_slabs(&self) -> u32 {
        let pools = if self.is_slabbed() { &self.blocks_per_slab[..] } else { &[1] };
        let mut blocks = vec![0; pools.len()];
        for group in &self.groups {
            blocks[group.pool as usize] += match group.kind {
                GroupKind::MambaAligned { num_speculative, .. } if self.is_slabbed() => {
                    1 + num_speculative
                }
                // The state that is read, the one that is written, and those that a load leaves.
                GroupKind::MambaAligned { .. } => 4,
                _ => {
                    let all = self.max_len.div_ceil(group.block_size);
                    self.admission_cap(group).map_or(all, |cap| cap.min(all))
                }
            };
        }
        blocks.iter().zip(pools).map(|(blocks, size)| blocks.div_ceil(*size)).sum()
    }

    /// Slabs that a step with drafts needs. A load leaves them free.
    pub(super) fn slabs_for_drafts(&self) -> u32 {
        let attention = self.groups.iter().filter(|it| it.is_attention() && self.num_drafts > 0);
        let slabs = attention.map(|group| {
            let blocks = (1 + self.num_drafts).div_ceil(group.block_size);
            blocks.div_ceil(self.blocks_per_slab.get(group.pool as usize).copied().unwrap_or(1))
        });
        slabs.sum()
    }

    /// Blocks of a window that a request holds at a time, as vLLM's specs say.
    pub(super) fn admission_cap(&self, group: &Group) -> Option<u32> {
        let (kept, is_shifted) = match group.kind {
            GroupKind::SlidingWindow { window, .. } => (window - 1, true),
            GroupKind::Chunked { chunk } => (chunk, false),
            _ => return None,
        };
        let in_flight = self.budget * (1 + u32::from(self.is_async));
        let num_tokens = (kept + in_flight).min(self.max_len);
        Some(num_tokens.div_ceil(group.block_size) + u32::from(is_shifted))
    }

    pub(super) fn is_slabbed(&self) -> bool {
        !self.blocks_per_slab.is_empty()
    }

    pub(super) fn has_states(&self) -> bool {
        self.groups.iter().any(|group| group.kind.storage() == Storage::Moving)
    }

    /// Returns the tokens that divide the length of each hit.
    pub(super) fn grain(&self) -> u32 {
        let sizes = self.groups.iter().filter(|it| it.is_attention()).map(|it| it.block_size);
        sizes.fold(1, |all, size| {
            (1..=size).map(|n| n * all).find(|it| it % size == 0).unwrap_or(all)
        })
    }

    /// Blocks a slab of each pool, as kernels see them. Where one pool owns all blocks, those of states are kernels
    /// of their own.
    pub(super) fn pools(&self) -> &[u32] {
        if self.is_slabbed() { &self.blocks_per_slab } else { &[1, 1] }
    }

    /// The place of a block of a group in memory.
    pub(super) fn place(&self, group: &Group, block: u32) -> (u32, u32) {
        let of_states = u32::from(!group.is_attention());
        (if self.is_slabbed() { group.pool } else { of_states }, block)
    }

    /// The place of a block that a key of a group names.
    pub(super) fn kept_place(&self, group: &Group, block: u32) -> (u32, u32) {
        group.kept_pool.map_or_else(|| self.place(group, block), |pool| (pool, block))
    }

    pub(super) fn store(&self) -> BlockStore {
        let store = if self.is_slabbed() {
            BlockStore::shared(self.num_slabs, &self.blocks_per_slab)
        } else {
            BlockStore::fixed(self.num_slabs)
        };
        store.expect("a store of a few slabs")
    }

    pub(super) fn config(&self) -> ManagerConfig {
        let groups = self.groups.iter().map(|group| GroupConfig {
            pool: PoolId(group.pool),
            kept: group.kept_pool.map(PoolId),
            admission_cap: self.admission_cap(group),
            zeroes_new_blocks: self.has_states() && group.is_attention(),
            ..GroupConfig::new(group.kind, group.block_size)
        });
        let grain = self.grain();
        let whole = if self.has_states() && self.is_slabbed() {
            self.max_len.next_multiple_of(grain)
        } else {
            grain
        };
        ManagerConfig {
            prefill_checkpoint_alignment: self.prefill_checkpoint_alignment,
            checkpoints: self.placement.as_ref().map(|it| it.parse().expect("a placement")),
            ..ManagerConfig::new(
                groups.collect(),
                self.lookup(),
                self.hash_block_size,
                whole,
                self.max_len,
            )
        }
    }

    /// Groups of full attention first; alike ones are searched together.
    fn lookup(&self) -> Lookup {
        if self.groups.len() == 1 {
            return Lookup::Unitary { use_eagle: false };
        }
        let mut specs: Vec<(Group, Vec<GroupId>)> = Vec::new();
        for is_full in [true, false] {
            for (id, &group) in (0..).map(GroupId).zip(&self.groups) {
                if (group.kind == GroupKind::Full) != is_full {
                    continue;
                }
                let alike = |(it, _): &&mut (Group, _)| {
                    (it.kind, it.block_size) == (group.kind, group.block_size)
                };
                match specs.iter_mut().find(alike) {
                    Some((_, groups)) => groups.push(id),
                    None => specs.push((group, vec![id])),
                }
            }
        }
        let specs = specs.into_iter().map(|(_, groups)| LookupGroup { groups, use_eagle: false });
        let fine_grained = self.is_slabbed() && self.has_states();
        Lookup::Hybrid { specs: specs.collect(), fine_grained }
    }
}

impl Part for Setup {
    type Bytes = [u8; Self::BYTES];

    fn decode(bytes: Self::Bytes) -> Self {
        let number = |at: usize, below: u32| u32::from(bytes[at]) % below;
        let is_slabbed = number(0, 4) < 3;
        let hash_block_size = 1 + number(1, 3);
        let num_drafts = number(2, 6).saturating_sub(3);
        let num_states = number(3, 4).saturating_sub(1);
        // States of vLLM's own rules are at the ends of blocks, and blocks of drafts beside them.
        let num_drafts = if num_states > 0 && !is_slabbed { 0 } else { num_drafts };
        let max_len = (24 + number(4, 41)).next_multiple_of(hash_block_size);
        let num_pools = 1 + number(5, MOST_POOLS);
        let mut groups = vec![Group::full(hash_block_size)];
        for at in (6..6 + 3 * number(15, 4) as usize).step_by(3) {
            let size = 1 + number(at + 1, 9);
            // Where states are kept at all hash blocks, or at the ends of blocks, no block may be longer.
            let longer = if num_states > 0 { 1 } else { 1 + number(at + 1, 27) / 9 };
            let block_size = hash_block_size * longer;
            groups.push(Group {
                kind: match number(at, 3) {
                    0 => GroupKind::Full,
                    1 => GroupKind::sliding_window(1 + size),
                    // Chunks are of whole blocks, or more of them are held than vLLM counts.
                    _ => GroupKind::Chunked { chunk: size.div_ceil(3) * block_size },
                },
                block_size,
                pool: if is_slabbed { number(at + 2, num_pools) } else { 0 },
                kept_pool: None,
            });
        }
        let keeps_apart = num_states > 0 && number(30, 3) == 2;
        let state = Group {
            kind: GroupKind::MambaAligned {
                num_speculative: num_drafts,
                checkpoint_alignment: None,
                has_checkpoint_blocks: false,
            },
            block_size: if is_slabbed { max_len } else { hash_block_size },
            pool: if is_slabbed { num_pools } else { 0 },
            kept_pool: (is_slabbed && keeps_apart).then_some(num_pools + 1),
        };
        groups.extend(vec![state; num_states as usize]);
        let mut blocks_per_slab: Vec<u32> =
            (0..num_pools as usize).map(|pool| 1 + number(16 + pool, 4)).collect();
        blocks_per_slab.push(1);
        if keeps_apart {
            blocks_per_slab.push(1 + number(31, 4));
        }
        let has_windows = groups.iter().any(|it| it.is_attention() && it.kind != GroupKind::Full);
        let has_windows_or_states = num_states > 0 || has_windows;
        let places = is_slabbed && has_windows_or_states;
        let format = format_text(if keeps_apart { "int8" } else { "full" });
        let placement = placement([18, 19, 20, 21, 22].map(|at| bytes[at].into())) + &format;
        let mut setup = Self {
            groups,
            hash_block_size,
            max_len,
            budget: hash_block_size * (2 + number(23, 6)),
            num_slabs: 0,
            blocks_per_slab: if is_slabbed { blocks_per_slab } else { Vec::new() },
            placement: places.then_some(placement),
            num_drafts,
            is_async: number(24, 2) > 0,
            // Without it two loads may still wait for each other, though seldom.
            reserves_all: number(25, 3) < 2 || number(27, 6) > 2,
            // vLLM's own rules leave keys of what a request has not computed that is taken out of its step.
            has_priorities: is_slabbed && number(26, 3) > 1,
            connector: match number(27, 6) {
                0 | 1 => Connector::None,
                2 => Connector::InStep,
                // vLLM counts what windows and states still need as nothing: its own loads may wait for each other.
                _ if !is_slabbed && has_windows_or_states => Connector::InStep,
                3 => Connector::Beside,
                _ => Connector::BesideOrComputed,
            },
            prefill_checkpoint_alignment: (places && !keeps_apart)
                .then(|| INSIDE[bytes[30] as usize / 3 % INSIDE.len()])
                .flatten(),
        };
        setup.num_slabs =
            1 + setup.enough_slabs() + setup.slabs_for_drafts() + number(28, 6) * number(29, 8);
        setup
    }
}

impl Setting for Setup {
    type Event = Event;
    type World = Engine;

    fn world(&self) -> Engine {
        Engine::new(self)
    }

    fn apply(engine: &mut Engine, event: &Event) -> Check {
        engine.apply(event)
    }

    fn finish(engine: &mut Engine) -> Check {
        engine.finish()
    }
}
