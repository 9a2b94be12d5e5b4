//! The step of vLLM's scheduler: running requests first, then waiting ones.

use std::collections::VecDeque;

use hybrid_blocks::vllm::AllocateArgs;

use super::Setup;
use super::admit::Admission;
use super::engine::Engine;
use super::request::Request;
use super::step::{Step, Work};
use crate::world::Check;

impl Engine {
    pub(super) fn schedule(&mut self) -> Result<Step, String> {
        self.manager.start_step();
        let mut step = Step { budget: self.setup.budget, ..Step::default() };
        self.schedule_running(&mut step)?;
        if !step.has_preempted {
            self.schedule_waiting(&mut step)?;
        }
        for work in &step.work {
            let mut running = self.running.iter_mut();
            let Some(request) = running.find(|it| it.life() == work.life) else { continue };
            request.num_computed += work.num_new;
            request.num_in_flight += work.num_new;
            request.num_placeholders += work.num_sampled();
            request.is_drafted = work.samples;
        }
        Ok(step)
    }

    fn schedule_running(&mut self, step: &mut Step) -> Check {
        let mut at = 0;
        while at < self.running.len() && step.budget > 0 {
            let Some(mut work) = self.next_work(at, step.budget)? else {
                at += 1;
                continue;
            };
            let args = AllocateArgs { num_new: work.num_new, ..AllocateArgs::default() };
            loop {
                let request = self.running.remove(at);
                let has_room = self.allocate(&request, &args);
                self.running.insert(at, request);
                if has_room? {
                    work.num_right = self.draw(work.num_drafts + 1);
                    step.budget -= work.num_new;
                    step.work.push(work);
                    at += 1;
                    break;
                }
                let victim = self.victim();
                let request = self.running.remove(victim);
                // The request may have been scheduled in this step.
                if let Some(taken) = step.work.iter().position(|it| it.life == request.life()) {
                    step.budget += step.work.remove(taken).num_new;
                }
                step.has_preempted = true;
                self.preempt(request)?;
                if victim == at {
                    break;
                }
                at -= usize::from(victim < at);
            }
        }
        Ok(())
    }

    /// Returns the next work of a running request, if there is any.
    fn next_work(&mut self, at: usize, budget: u32) -> Result<Option<Work>, String> {
        let Setup { max_len, num_drafts, .. } = self.setup;
        let request = &self.running[at];
        let start = request.num_computed;
        let num_expected = request.num_known + request.num_placeholders;
        let num_left = num_expected.saturating_sub(start);
        let most = budget.min((max_len - 1).saturating_sub(start));
        let is_full = num_expected >= request.length && !request.ends_unforeseen;
        if num_left == 0 || most == 0 || (is_full && request.num_placeholders > 0) {
            return Ok(None);
        }
        let drafts = if request.is_drafted { num_drafts.min(most - 1) } else { 0 };
        let end = self.boundary(at, start, start + num_left.min(most) + drafts)?;
        let num_new = end - start;
        let request = &self.running[at];
        Ok((num_new > 0).then(|| Work {
            life: request.life(),
            num_new,
            num_drafts: drafts,
            num_right: 0,
            samples: end - drafts == num_expected,
            num_written: 0,
        }))
    }

    /// Where a chunk of a running request ends that could end at `end`.
    fn boundary(&mut self, at: usize, start: u32, end: u32) -> Result<u32, String> {
        let request = self.running.remove(at);
        let boundary = self.chunk_end(&request, start, end);
        self.running.insert(at, request);
        boundary
    }

    /// Where a chunk of a request ends that could end at `end`: states are kept at the ends of chunks.
    pub(super) fn chunk_end(
        &mut self,
        request: &Request,
        start: u32,
        end: u32,
    ) -> Result<u32, String> {
        if !self.setup.has_states() {
            return Ok(end);
        }
        if self.setup.is_slabbed() {
            let handle = self.open(request)?;
            let end = self.manager.next_boundary(handle, &request.progress(), start, end);
            return end.map_err(|error| format!("next boundary: {error}"));
        }
        // `_mamba_block_aligned_split` of vLLM.
        let prefill_end = request.num_prompt.max(request.num_known - 1);
        if start >= prefill_end {
            return Ok(end);
        }
        let block = self.setup.hash_block_size;
        let end = if end < prefill_end { end / block * block } else { end };
        let last = (request.num_known - 1) / block * block;
        Ok(if start < last { end.min(last) } else { end })
    }

    /// Who makes way for others.
    fn victim(&self) -> usize {
        let last = self.running.len() - 1;
        if !self.setup.has_priorities {
            return last;
        }
        let running = 0..self.running.len();
        running.max_by_key(|&at| self.running[at].order()).unwrap_or(last)
    }

    fn schedule_waiting(&mut self, step: &mut Step) -> Check {
        let mut waiting = VecDeque::new();
        while step.budget > 0 && self.running.len() < Setup::MOST_RUNNING {
            let next = match self.holding.pop_front() {
                Some(request) => Some(request),
                None => self.next_waiting(),
            };
            let Some(request) = next else { break };
            match self.admit(request, step)? {
                Admission::Runs => {}
                Admission::Waits(request) if request.num_computed > 0 => {
                    step.holding.push_back(request);
                }
                Admission::Waits(request) => waiting.push_back(request),
                Admission::Refused(request) => {
                    let is_held = request.num_computed > 0;
                    let queue = if is_held { &mut self.holding } else { &mut self.waiting };
                    queue.push_front(request);
                    break;
                }
            }
        }
        while let Some(request) = step.holding.pop_back() {
            self.holding.push_front(request);
        }
        while let Some(request) = waiting.pop_back() {
            self.waiting.push_front(request);
        }
        Ok(())
    }

    fn next_waiting(&mut self) -> Option<Request> {
        if !self.setup.has_priorities {
            return self.waiting.pop_front();
        }
        let first = (0..self.waiting.len()).min_by_key(|&at| self.waiting[at].order())?;
        self.waiting.remove(first)
    }
}
