//! The part of vLLM's scheduler that admits a waiting request.

use hybrid_blocks::BlockId;
use hybrid_blocks::vllm::{AllocateArgs, RequestProgress, TokenCounts};

use super::engine::Engine;
use super::request::{Request, Stage};
use super::setup::Connector;
use super::step::{Step, Work};
use crate::world::{Check, ensure};

pub(super) enum Admission {
    Runs,
    /// Others may be admitted before it.
    Waits(Request),
    Refused(Request),
}

/// A hit, and what a connector has behind it.
struct Found {
    num_local: u32,
    blocks: Vec<Vec<BlockId>>,
    num_external: u32,
}

impl Engine {
    pub(super) fn admit(
        &mut self,
        mut request: Request,
        step: &mut Step,
    ) -> Result<Admission, String> {
        if request.stage == Stage::Loading {
            return Ok(Admission::Waits(request));
        }
        if let Stage::Loaded { valid } = request.stage {
            self.take_in_load(&mut request, valid)?;
        }
        let handle = self.open(&request)?;
        if self.setup.is_slabbed() {
            if request.num_computed > 0 && self.manager.is_stuck(handle) {
                self.give_back(&request, false)?;
                request.forget_computed();
            }
            if self.manager.expects_checkpoints() && self.waits_for_another(&request)? {
                ensure!(!step.work.is_empty(), "{} waits for no request", request.id);
                return Ok(Admission::Waits(request));
            }
        }
        let found = if request.num_computed > 0 {
            Found { num_local: 0, blocks: Vec::new(), num_external: 0 }
        } else {
            if std::mem::take(&mut request.is_asked_again)
                && self.setup.connector != Connector::None
            {
                return Ok(Admission::Waits(request));
            }
            self.look_up(&mut request)?
        };
        if found.num_external > 0 && self.loads_beside() {
            return self.admit_to_load(request, &found, step);
        }
        self.admit_to_run(request, &found, step)
    }

    fn waits_for_another(&mut self, request: &Request) -> Result<bool, String> {
        let handle = self.open(request)?;
        Ok(self.manager.hits_more_later(handle, &request.progress()))
    }

    /// A load has ended: what it has written may be found from now on.
    fn take_in_load(&mut self, request: &mut Request, valid: u32) -> Check {
        request.stage = Stage::Waiting;
        request.num_computed = valid;
        if valid == 0 {
            self.give_back(request, false)?;
            request.forget_computed();
            return Ok(());
        }
        let handle = self.open(request)?;
        let committed = self.manager.commit(handle, &request.progress(), valid);
        committed.map_err(|error| format!("commit of what was loaded: {error}"))?;
        // The last token is always computed, for its logits.
        request.num_computed = valid.min(request.num_known - 1);
        request.num_written = request.num_computed;
        Ok(())
    }

    fn look_up(&mut self, request: &mut Request) -> Result<Found, String> {
        let handle = self.open(request)?;
        self.tell(request, handle)?;
        let progress = RequestProgress {
            num_tokens: request.num_known,
            num_prompt: request.num_prompt,
            was_preempted: request.num_preemptions > 0,
            ..RequestProgress::default()
        };
        let limit = request.num_known - 1;
        let hit = if self.setup.is_slabbed() {
            let hit = self.manager.longest_usable_hit(handle, limit, &progress);
            hit.map_err(|error| format!("look-up: {error}"))?
        } else {
            self.manager.longest_hit(handle, limit)
        };
        let num_local = hit.num_tokens;
        ensure!(num_local <= limit, "a hit of {num_local} of {} tokens", request.num_known);
        request.boundary = if hit.num_uncached > 0 { num_local + hit.num_uncached } else { 0 };
        let num_external = self.num_external(request, num_local);
        Ok(Found { num_local, blocks: hit.blocks, num_external })
    }

    /// The request holds blocks from now on, and is not computed before its load has ended.
    fn admit_to_load(
        &mut self,
        mut request: Request,
        found: &Found,
        step: &Step,
    ) -> Result<Admission, String> {
        let loaded: Vec<u32> = (0..self.setup.groups.len() as u32).collect();
        let args = AllocateArgs {
            delay_commit: true,
            reserved_blocks: self.reserved_blocks(step)?,
            unzeroed_groups: &loaded,
            ..self.args(&request, found, 0)
        };
        if !self.allocate(&request, &args)? {
            return Ok(Admission::Refused(request));
        }
        request.stage = Stage::Loading;
        request.num_computed = found.num_local + found.num_external;
        self.begin_load(&request, found.num_local, found.num_external);
        Ok(Admission::Waits(request))
    }

    fn admit_to_run(
        &mut self,
        mut request: Request,
        found: &Found,
        step: &mut Step,
    ) -> Result<Admission, String> {
        let start = request.num_computed + found.num_local + found.num_external;
        let end = (start + step.budget).min(request.num_known);
        let end = self.chunk_end(&request, start, end)?;
        let num_new = end - start;
        if num_new == 0 {
            return Ok(Admission::Waits(request));
        }
        if !self.allocate(&request, &self.args(&request, found, num_new))? {
            return Ok(Admission::Refused(request));
        }
        if found.num_external > 0 {
            self.begin_load(&request, found.num_local, found.num_external);
        }
        (request.num_computed, request.num_written) = (start, start);
        request.stage = Stage::Running;
        step.budget -= num_new;
        step.work.push(Work {
            life: request.life(),
            num_new,
            num_drafts: 0,
            num_right: 0,
            samples: end == request.num_known,
            num_written: 0,
        });
        self.running.push(request);
        Ok(Admission::Runs)
    }

    fn args<'a>(&self, request: &Request, found: &'a Found, num_new: u32) -> AllocateArgs<'a> {
        let is_hit = found.blocks.iter().any(|blocks| !blocks.is_empty());
        debug_assert!(request.num_computed == 0 || !is_hit);
        AllocateArgs {
            num_new,
            num_new_computed: found.num_local,
            computed: is_hit.then_some(&found.blocks),
            num_external: found.num_external,
            full_sequence_must_fit: self.setup.reserves_all,
            has_scheduled: !self.running.is_empty(),
            ..AllocateArgs::default()
        }
    }

    /// Blocks that prompts under way still need, and a step with drafts: a load leaves those to them.
    fn reserved_blocks(&mut self, step: &Step) -> Result<u64, String> {
        let (num_drafts, for_drafts) = (self.setup.num_drafts, self.setup.slabs_for_drafts());
        if self.setup.is_slabbed() && self.setup.reserves_all {
            // An admission leaves to others what they were promised.
            return Ok(for_drafts.into());
        }
        let prompts = self.running.iter().filter(|it| it.num_computed < it.num_known);
        let prompts = prompts.chain(&self.holding).chain(&step.holding);
        let prompts: Vec<_> = prompts.map(|it| (it.id.clone(), it.progress())).collect();
        let mut num_reserved = 0;
        for (id, progress) in prompts {
            let num_tokens = progress.num_tokens.min(self.setup.max_len);
            let drafts = if num_drafts > 0 { 1 + num_drafts } else { 0 };
            let counts = TokenCounts {
                num_tokens: num_tokens + drafts,
                num_main: num_tokens,
                num_computed: progress.num_computed,
                num_local: progress.num_computed,
                num_encoder: 0,
                prefill_end: progress.num_prompt.max(progress.num_tokens - 1),
                is_admission: true,
            };
            let handle = self.manager.add(&id);
            let demand = self.manager.demand(handle, None, counts);
            num_reserved += demand.map_err(|error| format!("demand: {error}"))?;
        }
        Ok(num_reserved.max(0).cast_unsigned() + u64::from(for_drafts))
    }
}
