//! The planner against a naive model that tries every length.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use hybrid_blocks::{BlockId, Digest, GroupId, GroupKind, Key};
use hybrid_blocks_offload::plan::{
    Costs, Load, OffloadGroup, Plan, Planner, Previous, ReadCost, Tier,
};
use proptest::prelude::*;

/// A digest that stands for hash block `at` of one prompt.
fn digest(at: u32) -> Digest {
    let mut bytes = [at as u8; 32];
    bytes[..8]
        .copy_from_slice(&(u64::from(at) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    Digest::from(bytes)
}

/// Which slot holds a key, by group and hash block; and how many look-ups each key had.
#[derive(Debug, Default, Clone)]
struct Held {
    slots: BTreeMap<(u32, [u8; 32]), u32>,
    asked: RefCell<BTreeMap<(u32, [u8; 32]), u32>>,
}

impl Held {
    fn get(&self, key: &Key) -> Option<BlockId> {
        self.slots.get(&(key.group.0, *key.digest.as_bytes())).map(|&slot| BlockId(slot))
    }
}

impl Tier for Held {
    fn find(&self, key: &Key, _previous: Previous) -> Option<BlockId> {
        *self.asked.borrow_mut().entry((key.group.0, *key.digest.as_bytes())).or_default() += 1;
        self.get(key)
    }
}

fn is_state(kind: GroupKind) -> bool {
    matches!(
        kind,
        GroupKind::State { .. } | GroupKind::MambaAligned { .. } | GroupKind::MambaInPlace { .. }
    )
}

fn is_free(kind: GroupKind) -> bool {
    matches!(
        kind,
        GroupKind::Ring | GroupKind::Cross { .. } | GroupKind::SlidingWindow { window: 1, .. }
    )
}

/// Tokens a chunk of a group, 0 if it is not stored.
fn chunk_of(group: &OffloadGroup) -> u32 {
    if is_free(group.kind) { 0 } else { group.chunk_tokens }
}

/// The chunks that a group must hold for a length, and how many of them are only looked at because of a
/// drafter. `None`: the length cannot be proven for the drafter.
fn needed(group: &OffloadGroup, chunk: u32, length: u32) -> (std::ops::Range<u32>, u32) {
    if chunk == 0 {
        return (0..0, 0);
    }
    let eagle = u32::from(group.use_eagle);
    match group.kind {
        GroupKind::Full => (0..length / chunk + eagle, eagle),
        GroupKind::SlidingWindow { window, .. } => {
            let first = (length + 1).saturating_sub(window) / chunk;
            (first..length / chunk + eagle, eagle)
        }
        GroupKind::Chunked { chunk: size } => {
            (length / size * size / chunk..length / chunk + eagle, eagle)
        }
        kind if is_state(kind) => (length / chunk - 1..length / chunk, 0),
        _ => (0..0, 0),
    }
}

struct Case {
    groups: Vec<OffloadGroup>,
    hash: u32,
    tiers: Vec<Held>,
    num_digests: u32,
    num_computed: u32,
    limit: u32,
    reads: Vec<Option<ReadCost>>,
    per_token: Option<f64>,
}

impl Case {
    fn planner(&self) -> Planner {
        Planner::new(&self.groups, self.hash).expect("sizes fit")
    }

    fn digests(&self) -> Vec<Digest> {
        (0..self.num_digests).map(digest).collect()
    }

    fn key(&self, group: usize, chunk: u32, index: u32) -> Option<Key> {
        let at = (index + 1) * chunk / self.hash - 1;
        (at < self.num_digests).then(|| Key { digest: digest(at), group: GroupId(group as u32) })
    }

    /// The first tier of an order that holds a chunk.
    fn find(&self, order: &[u8], group: usize, chunk: u32, index: u32) -> Option<Load> {
        let key = self.key(group, chunk, index)?;
        order.iter().find_map(|&tier| {
            let slot = self.tiers[usize::from(tier)].get(&key)?;
            Some(Load { chunk: index, key, tier, slot })
        })
    }

    fn empty(&self) -> Plan {
        Plan { num_tokens: 0, num_passed_by: 0, loads: vec![Vec::new(); self.groups.len()] }
    }

    fn longest_length(&self) -> u32 {
        self.limit.min(self.num_digests * self.hash)
    }

    /// Every length that can be restored, the longest first.
    fn restorable(&self, planner: &Planner, order: &[u8]) -> Vec<Plan> {
        (self.num_computed + 1..=self.longest_length())
            .rev()
            .filter(|length| length % planner.alignment() == 0)
            .filter_map(|length| {
                let loads = self.restore(order, length)?;
                Some(Plan { num_tokens: length, num_passed_by: 0, loads })
            })
            .collect()
    }

    fn naive(&self, planner: &Planner) -> Plan {
        let order: Vec<_> = (0..self.tiers.len() as u8).collect();
        self.restorable(planner, &order).into_iter().next().unwrap_or_else(|| self.empty())
    }

    /// Seconds until a tier has read some bytes.
    fn seconds(&self, tier: usize, bytes: u64) -> f64 {
        self.reads[tier].map_or(0.0, |cost| cost.latency + cost.per_byte * bytes as f64)
    }

    /// Seconds until a plan's reads have ended and what `longest` has beyond it is computed.
    fn ready(&self, plan: &Plan, longest: u32) -> f64 {
        let mut bytes = vec![0; self.tiers.len()];
        for load in plan.loads.iter().flatten() {
            bytes[usize::from(load.tier)] += self.groups[load.key.group.index()].chunk_bytes;
        }
        let reads = bytes.iter().enumerate().filter(|&(_, &bytes)| bytes > 0);
        let read = reads.map(|(tier, &bytes)| self.seconds(tier, bytes)).fold(0.0, f64::max);
        let length = plan.num_tokens.max(self.num_computed);
        read + self.per_token.unwrap_or(0.0) * f64::from(longest - length)
    }

    /// Tiers by the time that each would take to read all that is needed for the whole prompt.
    fn naive_order(&self) -> Vec<u8> {
        let length = self.longest_length();
        let bytes = self.groups.iter().map(|group| {
            let chunk = chunk_of(group);
            if chunk == 0 || length < chunk {
                return 0;
            }
            let (chunks, unread) = needed(group, chunk, length);
            let computed = if is_state(group.kind) { 0 } else { self.num_computed / chunk };
            let first = chunks.start.max(computed);
            u64::from((chunks.end - unread).saturating_sub(first)) * group.chunk_bytes
        });
        let bytes = bytes.sum::<u64>().max(1);
        let mut order: Vec<_> = (0..self.tiers.len() as u8).collect();
        if self.reads.iter().all(Option::is_some) {
            order.sort_by(|&one, &other| {
                self.seconds(one.into(), bytes).total_cmp(&self.seconds(other.into(), bytes))
            });
        }
        order
    }

    /// The restorable length from which the request resumes soonest; of equals the longest.
    fn naive_soonest(&self, planner: &Planner) -> Plan {
        let mut plans = self.restorable(planner, &self.naive_order());
        let Some(longest) = plans.first().map(|plan| plan.num_tokens) else { return self.empty() };
        if self.per_token.is_none() {
            return plans.swap_remove(0);
        }
        plans.push(self.empty());
        let soonest = plans.into_iter().reduce(|best, other| {
            let is_sooner = self.ready(&other, longest) < self.ready(&best, longest);
            if is_sooner { other } else { best }
        });
        let plan = soonest.expect("one is empty");
        let length = plan.num_tokens.max(self.num_computed);
        Plan { num_passed_by: longest - length, ..plan }
    }

    fn plan_soonest(&self, planner: &Planner) -> Plan {
        let tiers: Vec<&dyn Tier> = self.tiers.iter().map(|tier| tier as &dyn Tier).collect();
        let costs = Costs { reads: &self.reads, per_token: self.per_token };
        planner.plan_soonest(&tiers, &costs, &self.digests(), self.num_computed, self.limit)
    }

    fn restore(&self, order: &[u8], length: u32) -> Option<Vec<Vec<Load>>> {
        self.groups
            .iter()
            .enumerate()
            .map(|(at, group)| {
                let chunk = chunk_of(group);
                let (chunks, unread) = needed(group, chunk, length);
                let end = chunks.end - unread;
                let on_device =
                    if is_state(group.kind) { 0 } else { self.num_computed / chunk.max(1) };
                let all: Option<Vec<_>> = chunks
                    .filter(|&index| index >= on_device)
                    .map(|index| self.find(order, at, chunk, index))
                    .collect();
                Some(all?.into_iter().filter(|load| load.chunk < end).collect())
            })
            .collect()
    }

    fn plan(&self, planner: &Planner) -> Plan {
        let tiers: Vec<&dyn Tier> = self.tiers.iter().map(|tier| tier as &dyn Tier).collect();
        planner.plan(&tiers, &self.digests(), self.num_computed, self.limit)
    }
}

fn kinds() -> impl Strategy<Value = GroupKind> {
    prop_oneof![
        3 => Just(GroupKind::Full),
        2 => (1u32..40, 0u32..3)
            .prop_map(|(window, extra_retained)| GroupKind::SlidingWindow { window, extra_retained }),
        1 => (1u32..40).prop_map(|chunk| GroupKind::Chunked { chunk }),
        2 => Just(GroupKind::State { slots: 1 }),
        1 => Just(GroupKind::MambaAligned {
            num_speculative: 1, checkpoint_alignment: None, has_checkpoint_blocks: false
        }),
        1 => Just(GroupKind::Ring),
        1 => Just(GroupKind::Cross { encoder_tokens: 7 }),
    ]
}

fn groups(hash: u32) -> impl Strategy<Value = Vec<OffloadGroup>> {
    let group = (kinds(), prop_oneof![Just(1), Just(2), Just(3), Just(4)], 1u64..5, any::<bool>())
        .prop_map(move |(kind, times, chunk_bytes, use_eagle)| OffloadGroup {
            kind,
            chunk_tokens: hash * times,
            chunk_bytes,
            use_eagle,
        });
    prop::collection::vec(group, 1..5).prop_filter("something is stored", |groups| {
        groups.iter().any(|group| !is_free(group.kind))
    })
}

/// Whole seconds, so that sums are exact.
fn costs() -> impl Strategy<Value = ReadCost> {
    let seconds = prop_oneof![Just(0), 0u32..4, 0u32..100];
    (seconds, 0u32..4).prop_map(|(latency, per_byte)| ReadCost {
        latency: latency.into(),
        per_byte: per_byte.into(),
    })
}

prop_compose! {
    fn cases()(hash in 1u32..5)(
        hash in Just(hash),
        groups in groups(hash),
        num_digests in 0u32..48,
        // Each prompt reaches a length in each tier, with some holes below it.
        reach in prop::collection::vec((0u32..60, 0u32..4), 1..4),
        holes in prop::collection::vec((0u8..3, 0u32..5, 0u32..48), 0..12),
        state_odds in 1u64..5,
        num_computed in 0u32..40,
        limit in 0u32..200,
        costs in (
            prop::collection::vec(prop::option::weighted(0.9, costs()), 3),
            prop::option::weighted(0.9, 0u32..12),
        ),
    ) -> Case {
        let tiers = (0u8..).zip(reach).map(|(tier, (reach, skip))| {
            let mut slots = BTreeMap::new();
            for (id, group) in (0u32..).zip(&groups) {
                for at in skip * 2..reach {
                    let is_hole = holes.contains(&(tier, id, at))
                        || is_state(group.kind) && u64::from(at * 7 + id) % state_odds != 0;
                    if !is_hole {
                        slots.insert((id, *digest(at).as_bytes()), at + 1);
                    }
                }
            }
            Held { slots, ..Held::default() }
        });
        let tiers: Vec<_> = tiers.collect();
        let reads = costs.0[..tiers.len()].to_vec();
        let per_token = costs.1.map(f64::from);
        Case { groups, hash, tiers, num_digests, num_computed, limit, reads, per_token }
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held: Vec<Vec<_>> =
            self.tiers.iter().map(|tier| tier.slots.values().collect()).collect();
        write!(
            f,
            "{:?} hash {} held {held:?} digests {} computed {} limit {} reads {:?} token {:?}",
            self.groups,
            self.hash,
            self.num_digests,
            self.num_computed,
            self.limit,
            self.reads,
            self.per_token
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_is_the_longest_prefix_that_every_group_holds(case in cases()) {
        let planner = case.planner();
        prop_assert_eq!(case.plan(&planner), case.naive(&planner));
    }

    #[test]
    fn a_request_goes_on_from_the_length_that_is_there_soonest(case in cases()) {
        let planner = case.planner();
        prop_assert_eq!(case.plan_soonest(&planner), case.naive_soonest(&planner));
    }

    /// Without costs, or with reads that take no time, the choice is the longest prefix.
    #[test]
    fn without_costs_the_longest_is_read(mut case in cases(), is_measured in any::<bool>()) {
        let planner = case.planner();
        let cost = is_measured.then(ReadCost::default);
        case.reads.iter_mut().for_each(|it| *it = cost);
        prop_assert_eq!(case.plan_soonest(&planner), case.naive(&planner));
    }

    /// The binary search may look for a chunk once more, once a round; no other chunk has two
    /// look-ups.
    #[test]
    fn a_look_up_asks_for_few_keys_more_than_once(case in cases()) {
        let planner = case.planner();
        let _ = case.plan(&planner);
        let (mut total, mut distinct) = (0, 0);
        if let Some(first) = case.tiers.first() {
            distinct = first.asked.borrow().len() as u32;
            total = first.asked.borrow().values().sum::<u32>();
        }
        let rounds = 2 + case.groups.len() as u32 * 13;
        prop_assert!(total <= distinct * 3 + 7 * rounds, "{} for {} keys", total, distinct);
    }

    /// Chunks vanish between a plan and its loads, and plans are made again. In the end a prefix is
    /// restored that every group holds, each chunk with its own content.
    #[test]
    fn whatever_is_lost_at_any_moment_a_prefix_is_restored(
        mut case in cases(),
        losses in prop::collection::vec((any::<prop::sample::Index>(), 0u8..3, 0u8..12), 0..24),
    ) {
        let planner = case.planner();
        let mut losses = losses.into_iter().peekable();
        let mut steps = 0u8;
        let (plan, restored) = loop {
            let plan = case.plan(&planner);
            let mut restored = BTreeSet::new();
            let mut is_whole = true;
            for (group, load) in plan.loads.iter().enumerate().flat_map(|(group, loads)| loads.iter().map(move |load| (group, load))) {
                steps = steps.wrapping_add(1);
                if let Some((at, tier, _)) = losses.next_if(|(.., when)| steps % 12 >= *when) {
                    let num_tiers = case.tiers.len();
                    let slots = &mut case.tiers[usize::from(tier) % num_tiers].slots;
                    if !slots.is_empty() {
                        let key = *slots.keys().nth(at.index(slots.len())).expect("below the length");
                        slots.remove(&key);
                    }
                }
                // A tier answers with the slot's content only while it still holds the key.
                if case.tiers[usize::from(load.tier)].get(&load.key) == Some(load.slot) {
                    restored.insert((group, load.chunk, *load.key.digest.as_bytes()));
                } else {
                    is_whole = false;
                    break;
                }
            }
            if is_whole {
                break (plan, restored);
            }
        };
        for (at, group) in case.groups.iter().enumerate() {
            let chunk = chunk_of(group);
            if plan.num_tokens == 0 {
                prop_assert!(restored.is_empty());
                continue;
            }
            let (chunks, unread) = needed(group, chunk, plan.num_tokens);
            for index in chunks.start..chunks.end - unread {
                let on_device = !is_state(group.kind) && (index + 1) * chunk <= case.num_computed;
                let key = case.key(at, chunk, index).expect("it was restored");
                prop_assert!(on_device || restored.contains(&(at, index, *key.digest.as_bytes())));
            }
        }
    }
}

#[test]
fn sizes_that_cannot_be_stored_are_refused() {
    let group =
        |kind, chunk_tokens| OffloadGroup { kind, chunk_tokens, chunk_bytes: 1, use_eagle: false };
    let new = |groups: &[OffloadGroup]| {
        let planner = Planner::new(groups, 16).map(|planner| planner.alignment());
        planner.map_err(|error| error.to_string())
    };
    assert!(new(&[group(GroupKind::Full, 24)]).unwrap_err().contains("24 tokens"));
    assert!(new(&[group(GroupKind::Ring, 24)]).unwrap_err().contains("can be stored"));
    assert!(new(&[group(GroupKind::Full, 0)]).unwrap_err().contains("can be stored"));
    let primes = [group(GroupKind::Full, 16 * 65_521), group(GroupKind::Full, 16 * 65_519)];
    assert!(new(&primes).unwrap_err().contains("common multiple"));
    assert_eq!(new(&[group(GroupKind::Full, 32), group(GroupKind::Ring, 24)]), Ok(32));
}
