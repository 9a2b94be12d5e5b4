//! Planner, host memory and disk together: conversations through both, byte for byte, whatever is lost.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Folder, open};
use hybrid_blocks::{BlockId, Digest, GroupId, GroupKind, Key};
use hybrid_blocks_offload::disk::{Disk, DiskConfig};
use hybrid_blocks_offload::host::{HostGeometry, HostTier, UnitContent};
use hybrid_blocks_offload::io::Threads;
use hybrid_blocks_offload::plan::{Load, OffloadGroup, Plan, Planner, Tier};
use proptest::prelude::*;

const HASH_BLOCK: u32 = 16;
const CHUNK_BYTES: [u64; 3] = [4096, 9000, 5000];

fn groups() -> Vec<OffloadGroup> {
    let group =
        |kind, chunk_bytes| OffloadGroup { kind, chunk_tokens: 16, chunk_bytes, use_eagle: false };
    vec![
        group(GroupKind::Full, CHUNK_BYTES[0]),
        group(GroupKind::State { slots: 1 }, CHUNK_BYTES[1]),
        group(GroupKind::sliding_window(40), CHUNK_BYTES[2]),
    ]
}

/// Digests of a chat whose first `shared` blocks all chats have.
fn digests(chat: u64, num_blocks: u32, shared: u32) -> Vec<Digest> {
    (0..num_blocks)
        .map(|at| {
            let chat = if at < shared { 0 } else { chat + (u64::from(shared) << 8) };
            let mut bytes = [3; 32];
            let mixed = (chat << 32 | u64::from(at) << 1 | 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            bytes[..8].copy_from_slice(&mixed.to_le_bytes());
            bytes[8..16].copy_from_slice(&chat.to_le_bytes());
            bytes[16..20].copy_from_slice(&at.to_le_bytes());
            bytes.into()
        })
        .collect()
}

/// The bytes that a model computes for a key.
fn content(key: &Key) -> Vec<u8> {
    let seed = key.digest.prefix() ^ u64::from(key.group.0);
    (0..CHUNK_BYTES[key.group.index()])
        .map(|at| (seed.wrapping_mul(at * 2 + 1) >> 32) as u8)
        .collect()
}

struct World {
    planner: Planner,
    host: HostTier,
    memory: Vec<u8>,
    disk: Disk,
    _folder: Folder,
}

/// Chunks to load from a tier.
fn num_loads(plan: &Plan, tier: u8) -> usize {
    plan.loads.iter().flatten().filter(|load| load.tier == tier).count()
}

impl World {
    fn new() -> Self {
        let folder = Folder::new("world");
        let mut config = DiskConfig::new(folder.path(), 2 << 20);
        config.segment_bytes = Some(256 << 10);
        config.direct = false;
        config.retry_after = Duration::ZERO;
        let (disk, _) = open(config, Arc::new(Threads::new(1)));
        let geometry = HostGeometry::new(600 << 10, &CHUNK_BYTES).expect("it fits");
        Self {
            planner: Planner::new(&groups(), HASH_BLOCK).expect("it fits"),
            memory: vec![0; geometry.num_bytes() as usize],
            host: HostTier::new(geometry).expect("it fits"),
            disk,
            _folder: folder,
        }
    }

    fn plan(&self, digests: &[Digest]) -> Plan {
        let disk = self.disk.tier();
        self.planner.plan(&[&self.host as &dyn Tier, &*disk], digests, 0, u32::MAX)
    }

    /// Stores a chat's end in host memory, or on the disk.
    fn store(&mut self, digests: &[Digest], on_disk: bool) {
        let key = |group, at: usize| Key { digest: digests[at], group: GroupId(group) };
        let len = digests.len();
        let attention: Vec<_> = (0..len).map(|at| key(0, at)).collect();
        let mut end = vec![(key(1, len - 1), len as u32 * 16)];
        end.extend((len.saturating_sub(3)..len).map(|at| (key(2, at), at as u32 * 16 + 16)));
        if on_disk {
            let all: Vec<_> = attention.iter().copied().chain(end.iter().map(|it| it.0)).collect();
            let bytes: Vec<_> = all.iter().map(content).collect();
            let chunks: Vec<_> =
                all.iter().zip(&bytes).map(|(key, bytes)| (*key, 16, &bytes[..])).collect();
            self.disk.store(&chunks);
            return;
        }
        let (parent, covered) = self
            .host
            .deepest(&attention)
            .map_or((None, 0), |(unit, covered)| (Some(unit), covered));
        let path: Vec<_> = (covered..len).map(|at| (attention[at], at as u32 * 16 + 16)).collect();
        let ticket = self.host.prepare_store(UnitContent { parent, path: &path, end: &end });
        if let Some(ticket) = ticket {
            for placement in &ticket.placements {
                let bytes = content(&placement.key);
                let start = placement.bytes.start as usize;
                self.memory[start..start + bytes.len()].copy_from_slice(&bytes);
            }
            self.host.complete_store(ticket, true);
        }
    }

    /// Loads a chunk from where the plan says, if it is still there.
    fn load(&mut self, load: &Load) -> Option<Vec<u8>> {
        let len = CHUNK_BYTES[load.key.group.index()] as usize;
        if load.tier == 1 {
            let mut bytes = vec![0; len];
            let results = self.disk.load(&[(load.key, load.slot)], &mut [&mut bytes])?;
            return results[0].is_ok().then_some(bytes);
        }
        if !self.host.pin(std::slice::from_ref(load)) {
            return None;
        }
        let start = self.host.bytes_of(load)?.start as usize;
        let bytes = self.memory[start..start + len].to_vec();
        self.host.unpin(std::slice::from_ref(load));
        Some(bytes)
    }

    /// Plans and loads until all of a plan's chunks have come. `lose` runs before each load.
    fn restore(
        &mut self,
        digests: &[Digest],
        mut lose: impl FnMut(&mut Self),
    ) -> (u32, BTreeMap<(u32, u32), Vec<u8>>) {
        loop {
            let plan = self.plan(digests);
            let loads: Vec<_> = plan.loads.iter().flatten().copied().collect();
            let mut device = BTreeMap::new();
            let is_whole = loads.iter().all(|load| {
                lose(self);
                let bytes = self.load(load);
                bytes.map(|bytes| device.insert((load.key.group.0, load.chunk), bytes)).is_some()
            });
            if is_whole {
                return (plan.num_tokens, device);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_restored_is_a_prefix_that_every_group_holds_byte_for_byte(
        ops in prop::collection::vec((0u8..8, 0u64..5, 1u32..24, 0u32..8, 0u8..40), 1..30),
    ) {
        let mut world = World::new();
        for (op, chat, len, shared, when) in ops {
            let digests = digests(chat + 1, len, shared);
            match op {
                0..=2 => world.store(&digests, false),
                3..=4 => world.store(&digests, true),
                _ => {
                    let longer = self::digests(chat + 1, len + 6, shared);
                    let mut step = 0;
                    let (num_tokens, device) = world.restore(&longer, |world| {
                        step += 1;
                        if step == when {
                            // Something is evicted from each tier while chunks are on their way.
                            world.host.evict_one();
                            world.store(&self::digests(90 + u64::from(when), 20, 0), true);
                            world.store(&self::digests(190 + u64::from(when), 20, 0), false);
                        }
                    });
                    let length = num_tokens / 16;
                    for at in 0..length {
                        let key = Key { digest: longer[at as usize], group: GroupId(0) };
                        prop_assert_eq!(device.get(&(0, at)), Some(&content(&key)));
                    }
                    if length > 0 {
                        let key = Key { digest: longer[length as usize - 1], group: GroupId(1) };
                        prop_assert_eq!(device.get(&(1, length - 1)), Some(&content(&key)));
                        for at in (num_tokens + 1).saturating_sub(40) / 16..length {
                            let key = Key { digest: longer[at as usize], group: GroupId(2) };
                            prop_assert_eq!(device.get(&(2, at)), Some(&content(&key)));
                        }
                        let window = length - (num_tokens + 1).saturating_sub(40) / 16;
                        prop_assert_eq!(device.len() as u32, length + 1 + window, "nothing in vain");
                    } else {
                        prop_assert!(device.is_empty());
                    }
                }
            }
            prop_assert_eq!(world.host.check_integrity(), Ok(()));
        }
    }
}

#[test]
fn a_plan_takes_attention_from_the_disk_and_the_state_from_memory() {
    let mut world = World::new();
    let all = digests(1, 12, 0);
    world.store(&all[..8], true);
    world.store(&all, false);
    while world.host.evict_one() {}
    world.store(&all, false);
    let plan = world.plan(&all);
    assert_eq!((plan.num_tokens, num_loads(&plan, 1)), (192, 0), "host memory is preferred");
    let gone = Load { chunk: 0, key: plan.loads[0][0].key, tier: 0, slot: BlockId(0) };
    assert!(!world.host.pin(&[gone]), "the null block holds nothing");
}
