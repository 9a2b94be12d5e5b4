//! Copies of states by our own rules: where a request keeps one, and where its chunks have to end for
//! that.
//!
//! A state stays in one block for life, so a copy is made before a step that writes on: of the state
//! after all tokens scheduled before, whether or not their step has ended.

use crate::error::Error;
use crate::group::Group;
use crate::ids::BlockId;
use crate::learn::checkpoint_policy::CheckpointPlan;
use crate::learn::{Reason, ResumePoint};
use crate::rules::vllm::{Call, KvCacheManager, ManagerConfig, RequestProgress};
use crate::store::{EvictionOrder, Store};

impl<S: Store> KvCacheManager<S> {
    /// Plans where a request leaves checkpoints that starts after `start` tokens without a look-up.
    pub(crate) fn plan_checkpoints(&mut self, row: usize, num_prompt: u32, start: u32) {
        self.plan_from(
            row,
            num_prompt,
            &ResumePoint { num_tokens: start, ..ResumePoint::default() },
        );
    }

    /// Plans where a request leaves checkpoints that resumes from a hit.
    pub(crate) fn plan_from(&mut self, row: usize, num_prompt: u32, resumed: &ResumePoint<'_>) {
        let Some((rules, keeper)) = self.config.checkpoint_rules().zip(self.keeper.as_ref()) else {
            return;
        };
        let (traffic, request) = (&keeper.traffic, &mut self.engine.requests.rows[row].rest);
        let num_left = request.shared.as_ref().map_or(0, |shared| traffic.num_left(shared));
        let about = (request.trail.client, num_prompt, self.config.checkpoint_ends(num_prompt));
        let plan = rules.plan(traffic, about, resumed, num_left);
        request.trail.plan = Some(plan);
    }

    /// Where a chunk of a prefill from `start` on has to end that could end at `end`: where a
    /// checkpoint is wanted, or else at the last length at which a state can be kept, if the request is
    /// preempted then. Counts are tokens.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn next_boundary(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
        start: u32,
        end: u32,
    ) -> Result<u32, Error> {
        let row = self.engine.requests.row(handle)?;
        self.engine.requests.rows[row].rest.next_checkpoint = None;
        let prefill_end = progress.prefill_end();
        // Windows need no copy, and so no chunk that ends before it.
        let rules = self.config.checkpoint_rules().filter(|_| self.config.has_states());
        let Some(rules) = rules.filter(|_| start < prefill_end) else { return Ok(end) };
        let grain = rules.grain;
        // A chunk that stopped among the tokens to which a drafter looks ahead would stop for good.
        let most = self.config.last_checkpoint(progress);
        if self.engine.requests.rows[row].rest.trail.plan.is_none() {
            self.plan_checkpoints(row, progress.num_prompt, start);
        }
        let mut plan = self.engine.requests.rows[row].rest.trail.plan();
        if progress.num_computed > 0 {
            plan = rules.after_copy(plan, start);
        }
        let (mut end, mut is_place) = (end, false);
        let next = loop {
            // A chunk that ends earlier may be too short to keep states from inside it.
            let mut places = rules.places(plan, start, most);
            let next = places.find(|&place| !self.config.is_inside(place, (start, end)));
            let aligned = end / grain * grain;
            if let Some(stop) = next.filter(|&stop| stop < end) {
                (end, is_place) = (stop, true);
            } else if !is_place && end < prefill_end && (start + 1..end).contains(&aligned) {
                end = aligned;
            } else {
                break next;
            }
        };
        self.engine.requests.rows[row].rest.next_checkpoint = next.map(|stop| (start, stop));
        Ok(end)
    }

    /// Tokens that a request which holds nothing would compute now: those beyond its hit. Takes nothing, and plans
    /// nothing. The request's digests must be up to date.
    #[must_use]
    pub fn num_uncached(&self, handle: u64, progress: &RequestProgress) -> u32 {
        let hit = self.longest_hit(handle, progress.num_tokens.saturating_sub(1)).num_tokens;
        progress.num_tokens - hit
    }

    /// Whether some prompt that is computed in this step goes on to a checkpoint.
    pub fn expects_checkpoints(&self) -> bool {
        !self.coming_checkpoints.is_empty()
    }

    /// Whether a request that holds nothing should wait for a checkpoint of another one, whose prompt is computed in
    /// this step. The request could hit that checkpoint, would compute no less until then itself, and saves more time
    /// than a step takes. Prompts that arrive together and begin alike wait so. The request's digests must be up to date.
    #[must_use]
    pub fn hits_more_later(&mut self, handle: u64, progress: &RequestProgress) -> bool {
        let Some(row) = self.row(handle) else { return false };
        let awaited = self.engine.requests.rows[row].rest.awaited;
        let (most, digests) = (self.config.last_checkpoint(progress), self.digests(handle));
        let unit = self.config.hash_block_size;
        // A drafter's group must match one unit more, which it then drops.
        let margin =
            if self.config.drops_eagle_checkpoint { self.config.hit_alignment() } else { 0 };
        let mut alike = self.coming_checkpoints.iter().filter(|&&(other, _, length)| {
            let last = ((length + margin) / unit) as usize - 1;
            other != handle
                && length <= most
                && awaited.is_none_or(|awaited| awaited == other)
                && digests.get(last).is_some_and(|own| self.digests(other).get(last) == Some(own))
        });
        let Some(first) = alike.next() else { return false };
        if self.holds_blocks(row) {
            return false;
        }
        // A request waits for one other only: more may come for ever. The tokens that the other computes make the hit
        // no longer than the start of its next chunk.
        if awaited.is_some() {
            return true;
        }
        let hit = self.longest_hit(handle, progress.num_tokens.saturating_sub(1)).num_tokens;
        let mut alike = std::iter::once(first).chain(alike);
        // The request that waits has its first token a step later.
        let step = self.config.checkpoints.and_then(|policy| policy.step_tokens).unwrap_or(0);
        let found =
            alike.find(|&&(_, start, length)| start >= hit && length > hit.saturating_add(step));
        let awaited = found.map(|&(other, ..)| other);
        self.engine.requests.rows[row].rest.awaited = awaited;
        awaited.is_some()
    }
}

impl ManagerConfig {
    /// Whether some group keeps states whose copies are checkpoints.
    pub(crate) fn has_states(&self) -> bool {
        self.groups.iter().any(|group| group.kind.is_aligned())
    }

    /// Whether some group keeps states for drafts.
    pub(crate) fn has_drafts(&self) -> bool {
        self.groups.iter().any(|group| group.kind.num_speculative() > 0)
    }

    /// The longest checkpoint of a prompt that the same prompt could hit, and that a longer one could. Where a state would
    /// need a copy for each, the first serves both; a window needs no more than a block beside the other.
    fn checkpoint_ends(&self, num_prompt: u32) -> [u32; 2] {
        let unit = self.hit_alignment();
        let last = self.last_stop(num_prompt);
        let whole = num_prompt.saturating_sub(self.num_hash_lookahead) / unit * unit;
        let is_kept = !self.has_states() && !self.drops_eagle_checkpoint;
        [last, if is_kept { whole } else { last }]
    }

    /// The longest checkpoint of a request that it could hit if it were sent again.
    pub(crate) fn last_checkpoint(&self, progress: &RequestProgress) -> u32 {
        let num_tokens = progress.num_prompt.max(progress.num_tokens);
        self.last_stop(num_tokens)
    }

    /// The last length of a prefill of `num_tokens` from which a later request can resume, and at which a chunk can end: a
    /// drafter of several modules computes the tokens that it looks ahead to in one.
    fn last_stop(&self, num_tokens: u32) -> u32 {
        let unit = self.hit_alignment();
        let before_last_chunk = num_tokens.saturating_sub(1 + self.num_reprefillable);
        self.checkpoint_position(num_tokens, unit).min(before_last_chunk / unit * unit)
    }

    /// The first length from `num_tokens` on at which the copy that follows the generation moves.
    pub(crate) fn next_move(&self, plan: &CheckpointPlan, num_tokens: u32) -> u32 {
        match &self.checkpoints {
            Some(policy) if plan.end => {
                let every = policy.follow_period(self.hit_alignment());
                let from = num_tokens.max(plan.prompt_tokens + 1);
                from.checked_next_multiple_of(every).unwrap_or(u32::MAX)
            }
            _ => u32::MAX,
        }
    }
}

impl<S: Store> Call<'_, S> {
    /// Takes note of where the prompt of a request that is being admitted leaves earlier ones.
    pub(crate) fn observe(&mut self) {
        let Some(keeper) = self.keeper.as_deref_mut() else { return };
        let trail = &mut self.request.trail;
        let unit = self.config.hash_block_size;
        let found = (trail.start / unit).saturating_sub(1);
        let digests = self.digests.get(found as usize..).unwrap_or_default();
        if let Some(arrival) = trail.arrive(keeper, digests)
            && let Some(plan) = &trail.plan
        {
            let earlier =
                arrival.earlier.map(|(author, at)| (author, (found + at as u32 + 1) * unit));
            let prompt = (plan.class, plan.prompt_tokens);
            keeper.traffic.on_prompt(prompt, self.request.shared.take(), earlier, trail.start);
        }
    }

    /// Whether what the next step writes on is a state worth a copy. The copy is a part of the
    /// call's demand then. A request that runs alone may need all memory, and packed: a copy would take
    /// the room that the request's next block has beside others.
    pub(crate) fn plan_copies(&mut self) -> Option<Reason> {
        let rules = self.config.checkpoint_rules().filter(|_| !self.slabs.runs_alone)?;
        let at = self.progress.num_computed;
        if !self.config.has_states()
            || !self.cache.enable_caching
            || !self.is_running()
            || !self.is_state_at(at)
        {
            return None;
        }
        let reason = rules.reason(&self.request.trail, at)?;
        let mut is_missing = false;
        for group in 0..self.tables.len() {
            if let Some(state) = self.state_without_key(group, at) {
                self.tables[group].set_copy_source(0, state);
                is_missing = true;
            }
        }
        is_missing.then_some(reason)
    }

    /// Whether the states hold exactly `num_tokens` tokens, which have a digest. A step with drafts
    /// leaves states of tokens that are then rejected.
    pub(crate) fn is_state_at(&self, num_tokens: u32) -> bool {
        let hash_block = self.config.hash_block_size;
        num_tokens > 0
            && num_tokens.is_multiple_of(self.config.hit_alignment())
            && (num_tokens / hash_block) as usize <= self.digests.len()
            && (num_tokens <= self.progress.num_prompt || !self.config.has_drafts())
    }

    /// A group's state, if no request can resume from it yet.
    fn state_without_key(&self, group: usize, num_tokens: u32) -> Option<BlockId> {
        if !self.config_of(group).kind.is_aligned() || self.tables[group].copy_source().is_some() {
            return None;
        }
        let key = self.key(group, num_tokens).ok()?;
        let state = *self.tables[group].blocks.first()?;
        let is_kept = self.cache.store.get(self.kept(group), &key).is_some();
        (!is_kept && !state.is_null()).then_some(state)
    }

    /// Does without the copies that were planned: there is no room for them. Returns how many they
    /// were.
    pub(crate) fn cancel_copies(&mut self) -> u64 {
        let tables = self.tables.iter_mut();
        tables.map(|table| u64::from(table.take_copy_source().is_some())).sum()
    }

    /// Lets the states be found that are about to be copied; the copies take the keys over.
    pub(crate) fn key_copies(&mut self, reason: Reason) -> Result<(), Error> {
        let at = self.progress.num_computed;
        if let Some(plan) = &mut self.request.trail.plan {
            plan.num_taken += u32::from(reason == Reason::Prompt);
        }
        for group in 0..self.tables.len() {
            let Some((_, state)) = self.tables[group].copy_source() else { continue };
            match reason {
                Reason::Prompt => self.stats.prompt += 1,
                Reason::Loaded => self.stats.loaded += 1,
                Reason::Follow => {
                    self.drop_following(group);
                    self.tables[group].moving_mut().following = at;
                    self.stats.followed += 1;
                }
            }
            self.tables[group].moving_mut().last_kept = at;
            // A copy that is kept apart gets its key with its block.
            if !self.group(group).keeps_apart() {
                self.key_tail(group, state, at, false)?;
            }
        }
        Ok(())
    }

    /// A state is kept in a block from now on.
    pub(crate) fn note_left(&mut self, group: usize, block: BlockId) {
        let at = self.progress.num_computed;
        let trail = &mut self.request.trail;
        let Some(keeper) = self.keeper.as_deref_mut().filter(|_| trail.plan.is_some()) else {
            return;
        };
        if keeper.traffic.counts(group) {
            trail.leave(&mut keeper.traffic, block, at);
            trail.lengths.push(at);
        }
        self.slabs.checkpoint = Some(at);
    }

    /// A request that is being admitted resumes from a copy of a block.
    pub(crate) fn note_used(&mut self, group: usize, block: BlockId) {
        let num_tokens = self.tables[group].moving().last_kept;
        let Some(keeper) = self.keeper.as_deref_mut() else { return };
        if keeper.traffic.counts(group) {
            self.request.trail.resume_state(&mut keeper.traffic, block, num_tokens);
        }
        self.slabs.checkpoint = Some(num_tokens);
    }

    /// Gives the checkpoint that the call uses or leaves its priority, if it does either.
    pub(crate) fn score_checkpoint(&mut self) {
        let (Some(keeper), Some(at)) = (self.keeper.as_deref(), self.slabs.checkpoint.take())
        else {
            return;
        };
        let (trail, num_computed) = (&self.request.trail, self.progress.num_computed);
        trail.score_checkpoint(keeper, self.cache, (self.tables, self.digests), num_computed, at);
    }

    /// Gives up the copy that followed the generation so far, unless a request resumes from it.
    fn drop_following(&mut self, group: usize) {
        let following = std::mem::take(&mut self.tables[group].moving_mut().following);
        self.request.trail.give_up(following);
        if following > 0
            && let Ok(key) = self.key(group, following)
        {
            let pool = self.kept(group);
            let before = self.cache.store.evicted().len();
            self.cache.store.discard(pool, &key);
            self.stats.superseded += (self.cache.store.evicted().len() - before) as u64;
        }
    }

    /// As [`Call::drop_uncomputed`], for a request that has computed something: one can be preempted in the step that it
    /// was scheduled in. One that has computed nothing is given up as a whole, and what it entered was computed.
    pub(crate) fn drop_unwritten(&mut self) {
        if self.progress.num_computed > 0 {
            self.drop_uncomputed();
        }
    }

    /// Drops the keys of blocks that were entered for tokens which are not computed after all.
    pub(crate) fn drop_uncomputed(&mut self) {
        let at = self.progress.num_computed;
        if !self.cache.enable_caching {
            return;
        }
        for group in 0..self.tables.len() {
            let config = self.config_of(group);
            if config.kind.is_recurrent() {
                continue;
            }
            let first = (at / config.block_size) as usize;
            for position in first..self.tables[group].blocks.len() {
                let block = self.tables[group].blocks[position];
                if self.first_key(group, block).is_some_and(|(_, num_tokens)| num_tokens > at) {
                    self.drop_own_keys(group, block);
                }
            }
        }
    }

    /// Keeps the states of a request that ends, or is preempted, in the blocks that they are in. Where checkpoints are
    /// kept apart, copies are. What is computed is exact: a step in flight ends before anybody reads them.
    pub(crate) fn keep_states(&mut self) -> Result<(), Error> {
        let at = self.progress.num_computed;
        let Some(rules) = self.config.checkpoint_rules() else { return Ok(()) };
        if !self.config.has_states()
            || !self.cache.enable_caching
            || !self.is_running()
            || at > self.progress.num_tokens
            || !rules.keeps_end(&self.request.trail.plan(), at)
            || !self.is_state_at(at)
        {
            return Ok(());
        }
        self.commit(at)?;
        let num_missing = self.reserve_copies(at);
        if num_missing > 0 {
            self.stats.no_room += num_missing;
            return Ok(());
        }
        for group in 0..self.tables.len() {
            if let Some(state) = self.state_without_key(group, at) {
                let block = if self.group(group).keeps_apart() {
                    self.keep_apart(group, 0, state)?
                } else {
                    state
                };
                self.drop_following(group);
                self.key_tail(group, block, at, false)?;
                self.note_left(group, block);
                self.stats.kept += 1;
            }
        }
        self.score_checkpoint();
        Ok(())
    }

    /// Has a block set aside for a copy of each state that is kept apart. Returns how many there are if they have no
    /// room together, else 0.
    fn reserve_copies(&mut self, num_tokens: u32) -> u64 {
        if !self.cache.groups.iter().any(Group::keeps_apart) {
            return 0;
        }
        self.cache.demand.fill(0);
        for group in 0..self.tables.len() {
            let is_apart = self.group(group).keeps_apart();
            if is_apart && self.state_without_key(group, num_tokens).is_some() {
                let kept = self.kept(group);
                self.cache.demand[kept.index()] += 1;
            }
        }
        if self.cache.reserve().is_ok() { 0 } else { self.cache.demand.iter().sum() }
    }
}
