//! The engine's calls, as fixtures know them. Nothing else here calls the engine.

use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, ReleaseRules,
    RequestProgress, TokenCounts,
};
use hybrid_blocks::{BlockId, CacheEvent, Digest, FixedStore, GroupId, GroupKind, PoolId, Store};

use super::digests::number;
use super::fixture::{self, Allocate, Blocks, State};

const POOL: PoolId = PoolId(0);

/// A manager with its blocks. Requests are numbered.
pub(crate) struct Engine {
    manager: KvCacheManager<FixedStore>,
}

/// Digest and group.
type Key = (u32, u32);
type Answer<T> = Result<T, String>;

impl Engine {
    pub(crate) fn new(start: &fixture::Start) -> Self {
        Self {
            manager: KvCacheManager::new(
                FixedStore::new(start.num_blocks).unwrap(),
                config(&start.config),
            )
            .unwrap(),
        }
    }

    /// The handle of a request; one that names nothing, if the request is not known.
    fn handle(&self, request: u32) -> u64 {
        self.manager.find(&id(request)).unwrap_or(u64::MAX)
    }

    pub(crate) fn update_digests(&mut self, request: u32, digests: &[Digest]) {
        let handle = self.manager.add(&id(request));
        let known = self.manager.digests_mut(handle).unwrap();
        known.extend_from_slice(&digests[known.len()..]);
    }

    /// Blocks, tokens, and tokens after them that only some groups hold.
    pub(crate) fn hit(&self, request: u32, limit: u32) -> (Blocks, u32, u32) {
        let hit = self.manager.longest_hit(self.handle(request), limit);
        (numbers(&hit.blocks), hit.num_tokens, hit.num_uncached)
    }

    pub(crate) fn hit_per_group(&self, digests: &[Digest], limit: u32) -> (Blocks, Vec<u32>) {
        let (blocks, lengths) = self.manager.hit_per_group(digests, limit);
        (numbers(&blocks), lengths)
    }

    pub(crate) fn is_quiet(&self, request: u32, facts: [u32; 6], ask: &Allocate) -> bool {
        let facts = self::facts(facts);
        self.manager.is_noop(self.handle(request), &facts, ask.new, ask.lookahead)
    }

    pub(crate) fn allocate(
        &mut self,
        request: u32,
        facts: [u32; 6],
        ask: &Allocate,
    ) -> Answer<Option<Blocks>> {
        let computed = ask.hit.as_deref().map(ids);
        let args = AllocateArgs {
            num_new: ask.new,
            num_new_computed: ask.hit_tokens,
            computed: computed.as_deref(),
            num_lookahead: ask.lookahead,
            num_external: ask.external,
            num_encoder: 0,
            delay_commit: ask.delayed,
            full_sequence_must_fit: ask.must_fit,
            reserved_blocks: ask.reserved,
            withheld_blocks: -ask.offset,
            has_scheduled: !ask.alone,
            unzeroed_groups: &ask.unzeroed,
        };
        let handle = self.manager.add(&id(request));
        let answer = self.manager.allocate(handle, &self::facts(facts), &args);
        Ok(said(answer)?.map(|new| numbers(&new)))
    }

    pub(crate) fn demand(
        &mut self,
        request: u32,
        hit: Option<&Blocks>,
        span: fixture::Span,
    ) -> i64 {
        let computed = hit.map(|hit| ids(hit));
        let counts = TokenCounts {
            num_tokens: span.num_tokens,
            num_main: span.num_main,
            num_computed: span.num_computed,
            num_local: span.num_local,
            num_encoder: 0,
            prefill_end: span.prefill_end,
            is_admission: span.is_admission,
        };
        let handle = self.manager.add(&id(request));
        self.manager.demand(handle, computed.as_deref(), counts).unwrap()
    }

    pub(crate) fn is_commit_quiet(&self, request: u32, num_computed: u32) -> bool {
        self.manager.is_commit_noop(self.handle(request), num_computed)
    }

    pub(crate) fn commit(
        &mut self,
        request: u32,
        facts: [u32; 6],
        num_computed: u32,
    ) -> Answer<()> {
        let handle = self.manager.add(&id(request));
        said(self.manager.commit(handle, &self::facts(facts), num_computed))
    }

    pub(crate) fn recede(&mut self, request: u32, num_processed: u32) -> Answer<()> {
        match self.manager.find(&id(request)) {
            Some(handle) => said(self.manager.release_skipped(handle, num_processed)),
            None => Ok(()),
        }
    }

    pub(crate) fn free(&mut self, request: u32) -> Answer<()> {
        said(self.manager.free(self.handle(request)))
    }

    pub(crate) fn pop(&mut self, request: u32) -> Vec<u32> {
        let popped = self.manager.pop(self.handle(request), true);
        popped.into_iter().map(|(_, block)| block.0).collect()
    }

    pub(crate) fn free_blocks(&mut self, blocks: &[u32]) -> Answer<()> {
        said(self.manager.store_mut().free(POOL, blocks.iter().map(|&block| BlockId(block))))
    }

    pub(crate) fn touch(&mut self, blocks: &[u32]) -> Answer<()> {
        blocks
            .iter()
            .try_for_each(|&block| said(self.manager.store_mut().touch(POOL, BlockId(block))))
    }

    pub(crate) fn evict(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.manager.store_mut().drop_keys(POOL, BlockId(block));
        }
    }

    pub(crate) fn reset(&mut self) -> bool {
        self.manager.store_mut().reset().is_ok()
    }

    pub(crate) fn start_step(&mut self) {
        self.manager.start_step();
    }

    pub(crate) fn zero_again(&mut self, request: u32, start_token: u32) -> Answer<()> {
        said(self.manager.zero_again(self.handle(request), start_token))
    }

    pub(crate) fn take_new_blocks(&mut self) -> Vec<u32> {
        self.manager.take_new_blocks().into_iter().map(|block| block.0).collect()
    }

    pub(crate) fn take_copies(&mut self) -> Vec<(u32, u32)> {
        self.manager.take_copies().into_iter().map(|(from, to)| (from.0, to.0)).collect()
    }

    pub(crate) fn take_boundary_states(&mut self) -> Vec<(u32, State)> {
        let states = self.manager.take_boundary_states().into_iter();
        let state = |it: hybrid_blocks::vllm::BoundaryState| {
            let id = self.manager.id(it.handle).unwrap();
            (request(id), (it.group.0, it.block.0, it.num_tokens))
        };
        states.map(state).collect()
    }

    pub(crate) fn take_final_states(&mut self, request: u32, facts: [u32; 6]) -> Vec<State> {
        let RequestProgress { num_computed, num_in_flight, .. } = self::facts(facts);
        let states =
            self.manager.take_final_states(self.handle(request), num_computed, num_in_flight);
        states.into_iter().map(|(group, block, tokens)| (group.0, block.0, tokens)).collect()
    }

    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.manager.take_events()
    }

    pub(crate) fn num_cached_tokens(&self, request: u32) -> u32 {
        self.manager.num_cached_tokens(self.handle(request))
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.manager.store().pool(POOL).num_available()
    }

    /// In the order in which they will be handed out.
    pub(crate) fn free_queue(&self) -> impl Iterator<Item = u32> {
        self.manager.store().free_order(POOL).into_iter().map(|block| block.0)
    }

    pub(crate) fn num_owners(&self, block: u32) -> u32 {
        self.manager.store().pool(POOL).ref_count(BlockId(block))
    }

    /// The first key, the tokens that it stands for, and further keys.
    pub(crate) fn keys(&self, block: u32) -> Option<(Key, u32, Vec<Key>)> {
        let index = self.manager.store().prefix_index(POOL);
        let key = |key: hybrid_blocks::Key| (number(&key.digest), key.group.0);
        let (first, num_tokens) = index.first_key(BlockId(block))?;
        let further = index.further_keys(BlockId(block)).map(key).collect();
        Some((key(first), num_tokens, further))
    }

    pub(crate) fn blocks(&self, request: u32, group: u32) -> Vec<u32> {
        let blocks = self.manager.blocks(self.handle(request), GroupId(group));
        blocks.iter().map(|block| block.0).collect()
    }

    pub(crate) fn num_cached_blocks(&self, request: u32, group: u32) -> Option<u32> {
        self.manager.num_cached_blocks(self.handle(request), GroupId(group))
    }

    pub(crate) fn checkpoint(&self, request: u32, group: u32) -> Option<(u32, u32)> {
        self.manager.checkpoint(self.handle(request), GroupId(group))
    }

    /// Requests that hold blocks of a group, in order.
    pub(crate) fn holders(&self, group: u32) -> Vec<u32> {
        let mut holders: Vec<_> = self.manager.holders(GroupId(group)).map(request).collect();
        holders.sort_unstable();
        holders
    }

    pub(crate) fn check_integrity(&self) -> Answer<()> {
        self.manager.store().check_integrity()
    }
}

fn id(request: u32) -> String {
    request.to_string()
}

fn request(id: &str) -> u32 {
    id.parse().unwrap()
}

fn said<T, E: std::fmt::Display>(answer: Result<T, E>) -> Answer<T> {
    answer.map_err(|error| error.to_string())
}

fn ids(groups: &[Vec<u32>]) -> Vec<Vec<BlockId>> {
    groups.iter().map(|group| group.iter().map(|&block| BlockId(block)).collect()).collect()
}

fn numbers(groups: &[Vec<BlockId>]) -> Blocks {
    groups.iter().map(|group| group.iter().map(|block| block.0).collect()).collect()
}

fn facts(facts: [u32; 6]) -> RequestProgress {
    let [num_computed, num_tokens, num_prompt, num_in_flight, boundary, is_waiting] = facts;
    RequestProgress {
        num_computed,
        num_tokens,
        num_prompt,
        num_in_flight: num_in_flight.cast_signed(),
        shared_prefix_boundary: boundary,
        is_waiting: is_waiting != 0,
        was_preempted: false,
    }
}

fn config(config: &fixture::Config) -> ManagerConfig {
    let spec = |(groups, use_eagle): &(Vec<u32>, bool)| LookupGroup {
        groups: groups.iter().copied().map(GroupId).collect(),
        use_eagle: *use_eagle,
    };
    let specs: Vec<_> = config.lookup_groups.iter().map(spec).collect();
    ManagerConfig {
        release: ReleaseRules::named(config.release_rules.iter().map(String::as_str)).unwrap(),
        groups: config.groups.iter().map(group).collect(),
        lookup: match config.lookup.as_str() {
            "none" => Lookup::None,
            "unitary" => Lookup::Unitary { use_eagle: specs[0].use_eagle },
            "hybrid" => Lookup::Hybrid { specs, fine_grained: config.fine_grained },
            other => panic!("no lookup {other}"),
        },
        hash_block_size: config.hash_block_size,
        scheduler_block_size: config.scheduler_block_size,
        max_model_len: config.max_model_len,
        enable_events: config.enable_events,
        enable_residency: config.enable_residency,
        retention_interval: config.retention_interval,
        num_reprefillable: config.num_reprefillable,
        num_hash_lookahead: config.num_hash_lookahead,
        drops_eagle_block: config.drops_eagle_block,
        drops_eagle_checkpoint: config.drops_eagle_checkpoint,
        shared_prefix_checkpoint: config.shared_prefix_checkpoint,
        watermark_blocks: config.watermark_blocks,
        prefill_checkpoint_alignment: None,
        checkpoints: None,
    }
}

fn group(group: &fixture::Group) -> GroupConfig {
    let numbers = [
        ("window", group.window),
        ("extra_retained", group.extra_retained),
        ("num_speculative", group.num_speculative),
        ("checkpoint_alignment", group.checkpoint_alignment.unwrap_or(0)),
        ("has_checkpoint_blocks", group.has_checkpoint_blocks.into()),
    ];
    let given: Vec<_> = numbers.into_iter().filter(|it| it.1 > 0).collect();
    GroupConfig {
        kind: GroupKind::parse(&group.kind, &given).unwrap(),
        block_size: group.block_size,
        pool: POOL,
        kept: None,
        use_eagle: group.use_eagle,
        admission_cap: group.admission_cap,
        is_cached: true,
        zeroes_new_blocks: group.zeroes_new_blocks,
    }
}
