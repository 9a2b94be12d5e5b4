//! [`HostCache`]: a host tier that takes the stores of requests chunk by chunk.

use std::ops::Range;

use hybrid_blocks::{
    BlockId, ConversationRank, Digest, GroupKind, Hint, Kept, Key, PoolId, Role, Turns, WorthClass,
};
use rustc_hash::FxHashMap as HashMap;

use super::chain::{Chain, Step};
use super::copies::Copies;
use super::geometry::HostGeometry;
use super::pins::Pins;
use super::store::{Placement, UnitContent};
use super::tier::HostTier;
use super::trials::HostTrials;
use crate::error::Error;
use crate::plan::{Load, OffloadGroup, Plan, Planner, Previous, Tier};

/// A request that stores chunks. The id of a closed one names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// The presence of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Host memory does not hold the chunk.
    Absent,
    /// The chunk is being copied to host memory.
    Pending,
    /// The chunk can be loaded.
    Ready,
}

/// A host tier for callers that store and load by key, a few chunks of a request at a time, in any order of
/// groups. It finds out which units they belong to.
#[derive(Debug)]
pub struct HostCache {
    tier: HostTier,
    planner: Planner,
    groups: Vec<OffloadGroup>,
    requests: HashMap<RequestId, Chain>,
    turns: Turns,
    trials: HostTrials,
    next_id: u64,
    copies: Copies,
    pins: Pins,
    evicted: Vec<Key>,
    version: u64,
    num_releases: u64,
}

/// Look-ups see what is being copied here too: a request can wait for it.
impl Tier for HostCache {
    fn find(&self, key: &Key, previous: Previous) -> Option<BlockId> {
        self.tier.find(key, previous).or_else(|| self.copies.slot_of(key))
    }

    fn find_row(&self, row: &mut [Load], tier: u8, previous: &mut Previous) -> usize {
        let num_found = self.tier.find_row(row, tier, previous);
        if self.copies.num_pending() == 0 {
            return num_found;
        }
        let mut num_pending = 0;
        for load in row.iter_mut().filter(|load| load.tier == Load::NOWHERE) {
            if let Some(slot) = self.copies.slot_of(&load.key) {
                (load.tier, load.slot) = (tier, slot);
                num_pending += 1;
            }
        }
        num_found + num_pending
    }
}

impl HostCache {
    /// An empty cache over `region_bytes`.
    ///
    /// # Errors
    /// As [`Planner::new`], [`HostGeometry::new`] and [`HostTier::new`].
    pub fn new(
        region_bytes: u64,
        groups: &[OffloadGroup],
        hash_block_size: u32,
    ) -> Result<Self, Error> {
        let planner = Planner::new(groups, hash_block_size)?;
        let chunk_bytes: Vec<_> = groups.iter().map(|group| group.chunk_bytes).collect();
        let geometry = HostGeometry::new(region_bytes, &chunk_bytes)?;
        let mut cache = Self {
            trials: HostTrials::new(geometry.num_bytes()),
            tier: HostTier::new(geometry)?,
            planner,
            groups: groups.to_vec(),
            requests: HashMap::default(),
            turns: Turns::default(),
            next_id: 0,
            copies: Copies::default(),
            pins: Pins::default(),
            evicted: Vec::new(),
            version: 0,
            num_releases: 0,
        };
        cache.weigh();
        Ok(cache)
    }

    /// The same for a caller that writes elsewhere what a request stored, once it ends: until then it goes after all
    /// else. To be called while the cache is empty.
    #[must_use]
    pub fn written_back(mut self) -> Self {
        self.tier.keep_running();
        self
    }

    /// The tier below.
    pub fn tier(&self) -> &HostTier {
        &self.tier
    }

    /// Answers look-ups over this cache and others.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Tokens a chunk of each group.
    pub fn chunk_tokens(&self) -> Vec<u32> {
        self.groups.iter().map(|group| group.chunk_tokens).collect()
    }

    /// Chunks that are being copied here.
    pub fn num_pending(&self) -> usize {
        self.copies.num_pending()
    }

    /// Bytes of the slots that chunks are being copied to.
    pub fn pending_bytes(&self) -> u64 {
        self.copies.bytes
    }

    /// Bytes that loads keep from eviction, counted once for each load.
    pub fn pinned_bytes(&self) -> u64 {
        self.pins.bytes
    }

    /// The same, each chunk counted once.
    pub fn pinned_chunk_bytes(&self) -> u64 {
        self.pins.chunk_bytes
    }

    /// Changes with all that look-ups see: a plan is valid as long as this is the same.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How often something ended that may have made room.
    pub fn num_releases(&self) -> u64 {
        self.num_releases
    }

    /// The presence of a chunk here.
    pub fn presence(&self, key: &Key) -> Presence {
        if self.tier.find(key, Previous::default()).is_some() {
            Presence::Ready
        } else if self.copies.slot_of(key).is_some() {
            Presence::Pending
        } else {
            Presence::Absent
        }
    }

    /// Whether a plan waits for chunks of this cache, which is tier number `tier` of the plan.
    pub fn is_pending(&self, plan: &Plan, tier: u8) -> bool {
        let mut loads = plan.loads.iter().flatten().filter(|load| load.tier == tier);
        self.copies.num_pending() > 0 && loads.any(|load| self.copies.slot_of(&load.key).is_some())
    }

    /// A request begins to store. `prefix` are all its keys and the tokens that they stand for.
    pub fn open_request(&mut self, prefix: &[(Key, u32)]) -> RequestId {
        let (mut path, others): (Vec<_>, Vec<_>) =
            prefix.iter().copied().partition(|(key, _)| self.is_path(key));
        path.sort_unstable_by_key(|&(key, num_tokens)| (num_tokens, key.group.0));
        let windows = others.into_iter().map(|chunk| (chunk, self.window(&chunk.0)));
        let windows = windows.filter(|&(_, window)| window > 0).collect();
        let last_group = path.iter().map(|(key, _)| key.group).max();
        let (way, lengths): (Vec<_>, Vec<_>) =
            path.iter().filter(|(key, _)| Some(key.group) == last_group).copied().unzip();
        let digests: Vec<Digest> = way.iter().map(|key| key.digest).collect();
        let turn = self.turns.on_arrival(0, &digests);
        if let Some(end) = turn.after {
            self.trials.on_return(end);
        }
        let class = WorthClass::new(turn.num_earlier, Hint::None);
        let parent = self.tier.deepest(&way).map(|(unit, count)| (unit, lengths[count - 1]));
        let id = RequestId(self.next_id);
        self.next_id += 1;
        if let Some((unit, _)) = parent {
            self.tier.hold(unit);
        }
        self.requests.insert(id, Chain::new(parent, class, path, windows));
        id
    }

    /// A request stores nothing any more. Its stores under way go on.
    pub fn close_request(&mut self, request: RequestId) {
        let Some(mut chain) = self.requests.remove(&request) else { return };
        self.settle(&mut chain);
        let end = self.turns.on_end(chain.class, 0, ConversationRank::ANY, chain.places().iter());
        let kept = Kept { bytes: self.bytes_of(&chain), num_tokens: chain.reach };
        self.trials.on_end(end, kept, self.chance(&chain));
        self.weigh();
        if let Some(unit) = chain.unit {
            self.tier.release_hold(unit);
        }
    }

    fn is_path(&self, key: &Key) -> bool {
        self.groups.get(key.group.index()).is_some_and(|it| it.kind.role() == Role::Full)
    }

    /// Tokens of a window; 0 for a state.
    fn window(&self, key: &Key) -> u32 {
        match self.groups.get(key.group.index()).map(|group| group.kind) {
            Some(GroupKind::SlidingWindow { window, .. }) => window,
            _ => 0,
        }
    }

    /// Takes slots for those of `chunks` (names, and the tokens they stand for) that are neither
    /// here nor on their way. Chunks that do not fit next to pinned ones are left out. `None` if
    /// none fits.
    pub fn begin_store(
        &mut self,
        request: RequestId,
        chunks: &[(Key, u32)],
    ) -> Option<Vec<Placement>> {
        self.version += 1; // also without room: it may evict
        let is_new = |(key, _): &&(Key, u32)| {
            self.tier.geometry().pool_of(key.group.index()).is_some()
                && self.presence(key) == Presence::Absent
        };
        let mut wanted: Vec<_> = chunks.iter().filter(is_new).copied().collect();
        wanted.sort_unstable_by_key(|&(key, num_tokens)| (num_tokens, key.group.0));
        wanted.dedup();
        let (path, end): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|it| self.is_path(&it.0));
        let windows = end.iter().map(|(key, _)| self.window(key)).collect::<Vec<_>>();
        let mut chain = self.requests.remove(&request).unwrap_or_default();
        let offered = chunks.iter().filter(|(key, _)| self.is_path(key));
        offered.clone().for_each(|&chunk| chain.know(chunk));
        let reach = offered.map(|&(_, num_tokens)| num_tokens).max().unwrap_or(0);
        self.settle(&mut chain);
        let mut placements = Vec::new();
        let mut has_failed = false;
        for step in chain.steps(&path, &end, &windows) {
            let Some(more) = self.store(&mut chain, &step) else {
                has_failed = true;
                break;
            };
            placements.extend(more);
        }
        if !has_failed && reach > chain.reach {
            self.store(&mut chain, &Step::shared(reach));
        }
        self.requests.insert(request, chain);
        (!has_failed || !placements.is_empty()).then_some(placements)
    }

    /// Gives a request's units what others have brought in on the way to them by now.
    fn settle(&mut self, chain: &mut Chain) {
        for (unit, length) in chain.units() {
            let late = self.shared(chain, length);
            if self.tier.share(unit, &late) {
                chain.own(&late);
            } else if chain.unit == Some(unit) {
                chain.restart();
            }
        }
    }

    /// Attention of a request that is here and that its units do not own, up to `last` tokens.
    fn shared(&self, chain: &Chain, last: u32) -> Vec<(Key, u32)> {
        chain.unowned(last).filter(|(key, _)| self.presence(key) == Presence::Ready).collect()
    }

    fn store(&mut self, chain: &mut Chain, step: &Step) -> Option<Vec<Placement>> {
        // A request's unit also needs the content that it shares with others up to here.
        let mut path = self.shared(chain, step.last);
        path.extend_from_slice(&step.path);
        path.sort_unstable_by_key(|&(key, num_tokens)| (num_tokens, key.group.0));
        let held =
            |(key, _): &&(Key, u32)| step.is_new(key) || self.presence(key) == Presence::Ready;
        let end: Vec<_> = step.end.iter().filter(held).copied().collect();
        if path.is_empty() && end.is_empty() {
            return Some(Vec::new());
        }
        let extended = chain.unit_for(step).filter(|&unit| self.tier.is_there(unit));
        let ticket = if let Some(unit) = extended {
            self.tier.extend_store(unit, &path, &end)
        } else {
            let parent = chain.unit;
            self.tier.prepare_store(UnitContent { parent, path: &path, end: &end })
        }?;
        self.evicted.extend_from_slice(self.tier.evicted());
        self.tier.hold(ticket.unit());
        if let Some(before) = chain.unit {
            self.tier.release_hold(before);
        }
        self.tier.touch(ticket.unit(), self.chance(chain));
        chain.own(&path);
        chain.step_done(step, ticket.unit());
        let placements = ticket.placements.clone();
        if placements.is_empty() {
            self.tier.complete_store(ticket, true);
        } else {
            self.copies.begin(ticket);
        }
        Some(placements)
    }

    /// Ends the copying of chunks. Those that `succeeded` are found from now on. Keys that are not on their
    /// way are passed over. Returns those that were.
    pub fn complete_store(&mut self, keys: &[Key], succeeded: bool) -> Vec<Key> {
        self.version += 1;
        self.num_releases += 1;
        let (placements, stores) = self.copies.end(keys, succeeded);
        if succeeded {
            self.tier.publish(&placements);
        }
        for (ticket, is_found) in stores {
            self.tier.complete_store(ticket, is_found);
        }
        placements.iter().map(|it| it.key).collect()
    }

    /// Protects chunks from eviction until [`HostCache::complete_load`], and says where they are. `None`,
    /// and nothing is protected, if one of them is not here.
    #[must_use]
    pub fn begin_load(&mut self, keys: &[Key]) -> Option<Vec<Range<u64>>> {
        let loads: Option<Vec<_>> = keys.iter().map(|key| self.load(key)).collect();
        let loads = loads.filter(|loads| self.tier.pin(loads))?;
        for load in &loads {
            self.pins.add(&load.key, self.slot_bytes(load));
        }
        loads.iter().map(|load| self.tier.bytes_of(load)).collect()
    }

    /// Ends the protection of chunks that [`HostCache::begin_load`] protected. Those that it did not, as before
    /// a reset, are passed over.
    pub fn complete_load(&mut self, keys: &[Key]) {
        self.num_releases += 1;
        let mut loads: Vec<_> = keys.iter().filter_map(|key| self.load(key)).collect();
        loads.retain(|load| {
            let bytes = self.slot_bytes(load);
            self.pins.remove(&load.key, bytes)
        });
        self.tier.unpin(&loads);
    }

    fn slot_bytes(&self, load: &Load) -> u64 {
        let geometry = self.tier.geometry();
        geometry.pool_of(load.key.group.index()).map_or(0, |pool| geometry.slot_bytes(pool))
    }

    fn load(&self, key: &Key) -> Option<Load> {
        let slot = self.tier.find(key, Previous::default())?;
        Some(Load { chunk: 0, key: *key, tier: 0, slot })
    }

    /// These chunks are used now, by a request if it is known. The units that brought them in are kept the
    /// longer the likelier a next turn is.
    pub fn touch(&mut self, keys: &[Key], request: Option<RequestId>) {
        let chain = request.and_then(|request| self.requests.get(&request));
        let chance = chain.map_or(1.0, |chain| self.chance(chain));
        let path = keys.iter().filter(|key| self.is_path(key));
        let mut homes: Vec<_> =
            path.filter_map(|key| self.tier.home_of(&self.load(key)?)).collect();
        homes.dedup();
        for unit in homes {
            self.tier.touch(unit, chance);
        }
    }

    /// Bytes of all that the next turn of a request may need.
    fn bytes_of(&self, chain: &Chain) -> u64 {
        let geometry = self.tier.geometry();
        let path = chain.way().filter_map(|key| geometry.pool_of(key.group.index()));
        let end = chain.unit.map_or(0, |unit| self.tier.end_bytes(unit));
        path.map(|pool| geometry.slot_bytes(pool)).sum::<u64>() + end
    }

    /// Lets the tier keep what it keeps as the trials found best.
    fn weigh(&mut self) {
        // Where one request has resumed, a second one counts as likely as after a first prompt.
        let left_behind = self.turns.relative_chance(WorthClass::default());
        self.tier.set_mean_lives(self.trials.lives(), left_behind);
    }

    /// The chance that the next turn of a request comes, over the mean chance.
    fn chance(&self, chain: &Chain) -> f64 {
        self.turns.relative_chance(chain.class)
    }

    /// Keys whose slots were taken since this was last asked.
    pub fn take_evicted(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.evicted)
    }

    /// Forgets everything, loads and stores under way too.
    ///
    /// # Errors
    /// As [`HostTier::new`].
    pub fn reset(&mut self) -> Result<(), Error> {
        self.tier.reset()?;
        self.trials = HostTrials::new(self.tier.geometry().num_bytes());
        self.requests.clear();
        self.turns = Turns::default();
        self.weigh();
        self.copies = Copies::default();
        self.pins = Pins::default();
        self.evicted.clear();
        self.version += 1;
        self.num_releases += 1;
        Ok(())
    }

    /// Bytes of all slots whose chunks can be found or are on their way, and of the pool of a group alone.
    pub fn held_bytes(&self, pool: PoolId) -> u64 {
        u64::from(self.tier.num_held_slots(pool)) * self.tier.geometry().slot_bytes(pool)
    }
}
