//! [`Setup`]: groups, memory and placement of a manager.

use hybrid_blocks::{GroupKind, Role, Storage};
use serde::{Deserialize, Serialize};

use crate::op::Op;
use crate::script::{Part, Setting};
use crate::world::{Check, World};

/// How a manager is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Groups, by id.
    pub groups: Vec<Group>,
    /// Tokens a digest stands for.
    pub hash_block_size: u32,
    /// Slabs of the arena with the null slab; blocks with the null block where there are no slabs.
    pub num_slabs: u32,
    /// Blocks a slab of each pool; empty for one pool that owns all blocks.
    pub blocks_per_slab: Vec<u32>,
    /// Where states are kept, as `CheckpointPolicy` reads it.
    pub placement: String,
    /// Distances inside a chunk at which a worker can keep states; none where chunks end for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_checkpoint_alignment: Option<u32>,
}

/// Configuration of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Kind of the group's layers.
    #[serde(with = "text")]
    pub kind: GroupKind,
    /// Tokens a block.
    pub block_size: u32,
    /// Where its blocks come from.
    pub pool: u32,
    /// Where its checkpoints lie, if they are kept in another format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_pool: Option<u32>,
}

impl Group {
    /// Full attention in the first pool.
    pub const fn full(block_size: u32) -> Self {
        Self { kind: GroupKind::Full, block_size, pool: 0, kept_pool: None }
    }

    /// The pool where its checkpoints lie.
    pub(crate) fn kept(&self) -> u32 {
        self.kept_pool.unwrap_or(self.pool)
    }

    /// The first token that the one at `at` looks at.
    pub(crate) fn first_seen(&self, at: u32) -> u32 {
        match self.kind {
            GroupKind::SlidingWindow { window, .. } => (at + 1).saturating_sub(window),
            GroupKind::Chunked { chunk } => at - at % chunk,
            _ => 0,
        }
    }

    /// Whether it keeps one entry a token.
    pub(crate) fn is_attention(&self) -> bool {
        self.kind.storage() == Storage::ByPosition
    }
}

impl Setup {
    /// Bytes a setup is decoded from.
    pub const BYTES: usize = 24;

    /// Whether hits can be predicted: all groups keep tokens.
    pub fn is_plain(&self) -> bool {
        self.groups.iter().all(Group::is_attention)
    }

    /// Returns the unit of entered tokens: multiples of it can be resumed by all groups.
    pub(crate) fn grain(&self) -> u32 {
        let cached = self.groups.iter().filter(|it| !matches!(it.kind, GroupKind::Cross { .. }));
        let mut sizes = cached.clone().map(|group| group.block_size);
        let has_states = cached.clone().any(|group| matches!(group.kind, GroupKind::State { .. }));
        let mut full = cached.filter(|group| group.kind == GroupKind::Full);
        if has_states && full.all(|group| group.block_size == self.hash_block_size) {
            return self.hash_block_size;
        }
        let first = sizes.next().unwrap_or(1);
        sizes.fold(first, |all, size| {
            (1..=size).map(|n| n * all).find(|it| it % size == 0).unwrap_or(all)
        })
    }

    /// Blocks a slab of each pool, where a single pool's slabs are its blocks.
    pub(crate) fn pools(&self) -> &[u32] {
        if self.blocks_per_slab.is_empty() { &[1] } else { &self.blocks_per_slab }
    }

    /// Most tokens of one request in flight.
    pub(crate) const fn max_in_flight_tokens() -> u32 {
        Op::MAX_CHUNK
    }
}

impl Part for Setup {
    type Bytes = [u8; Self::BYTES];

    fn decode(bytes: Self::Bytes) -> Self {
        let number = |at: usize, below: u32| u32::from(bytes[at]) % below;
        let plain = number(0, 2) == 0;
        // One pool that owns everything has no order but age.
        let num_pools = if plain { number(1, 4) } else { 1 + number(1, 3) };
        let mut blocks_per_slab: Vec<u32> =
            (0..num_pools).map(|pool| 1 + number(2 + pool as usize, 5)).collect();
        let format = FORMATS[number(23, 9) as usize];
        let hash_block_size = 1 + number(5, 2);
        let num_groups = number(6, 3) + u32::from(plain);
        let mut groups: Vec<Group> = (0..num_groups as usize)
            .map(|at| {
                let [kind, size, pool] = [7, 8, 9].map(|offset| 3 * at + offset);
                Group {
                    kind: kind_of(bytes[kind], bytes[size] / 3, plain),
                    block_size: (1 + number(size, 3)) * hash_block_size,
                    pool: number(pool, num_pools.max(1)),
                    kept_pool: None,
                }
            })
            .collect();
        if !plain {
            // Tokens have to be kept somewhere.
            groups.push(Group::full(hash_block_size));
        }
        if !plain && format != "full" {
            // The pool is its own, or that of other blocks.
            let is_own = number(23, 27) >= 9 || num_pools == 1;
            for group in groups.iter_mut().filter(|it| it.kind.role() == Role::State) {
                let other = (group.pool + 1) % num_pools;
                group.kept_pool = Some(if is_own { num_pools } else { other });
            }
            if is_own {
                blocks_per_slab.push(1 + number(23, 5));
            }
        }
        Self {
            groups,
            hash_block_size,
            num_slabs: if plain { 4 } else { 6 } + number(16, 24),
            blocks_per_slab,
            placement: placement([18, 19, 20, 21, 22].map(|at| bytes[at].into()))
                + &format_text(format),
            prefill_checkpoint_alignment: (format == "full")
                .then(|| INSIDE[number(17, 4) as usize])
                .flatten(),
        }
    }
}

impl Setting for Setup {
    type Event = Op;
    type World = World;

    fn world(&self) -> World {
        World::new(self)
    }

    fn apply(world: &mut World, op: &Op) -> Check {
        world.apply(op)
    }

    fn finish(world: &mut World) -> Check {
        world.finish()
    }
}

/// An engine has one encoder.
const ENCODER_TOKENS: u32 = 5;

fn kind_of(kind: u8, size: u8, plain: bool) -> GroupKind {
    let size = 1 + u32::from(size) % 7;
    match kind % if plain { 4 } else { 8 } {
        0 | 1 => GroupKind::Full,
        // vLLM asks for the block before a hit even where the next token looks at itself alone.
        2 => GroupKind::sliding_window(1 + size),
        3 => GroupKind::Chunked { chunk: size },
        4 => GroupKind::Cross { encoder_tokens: ENCODER_TOKENS },
        _ => GroupKind::State { slots: 1 + size % 3 },
    }
}

/// Half of the setups that convert no checkpoint keep them from inside chunks.
pub(crate) const INSIDE: [Option<u32>; 4] = [None, Some(1), None, Some(2)];

/// A third of the setups keep checkpoints in another format.
const FORMATS: [&str; 9] = ["full", "bf16", "full", "full", "fp8", "full", "full", "int8", "full"];

/// The option of a placement; nothing for the usual one.
pub(crate) fn format_text(format: &str) -> String {
    if format == "full" { String::new() } else { format!("/format={format}") }
}

/// A placement with each option that decides.
pub(crate) fn placement([margin, finish, follow, every, most]: [u32; 5]) -> String {
    let name = (margin % 7).checked_sub(1).map_or("learned".into(), |it| format!("fixed:{it}"));
    let finish = finish % 2 == 0;
    let [follow, every, most] = [follow % 6, every % 12, most % 5];
    format!("{name}/finish={finish}/follow_every={follow}/every={every}/max_per_request={most}")
}

/// A kind as the text that Python gives too.
mod text {
    use hybrid_blocks::GroupKind;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(kind: &GroupKind, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(kind)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GroupKind, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
