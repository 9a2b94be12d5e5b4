//! The part of vLLM's scheduler that takes the outputs of a step.

use hybrid_blocks::Store;

use super::engine::Engine;
use super::request::{Request, Stage};
use super::setup::Connector;
use super::step::Load;
use super::step::{Step, Work};
use crate::world::{Check, ensure};

impl Engine {
    pub(super) fn update(&mut self, step: &Step) -> Check {
        for work in &step.work {
            if let Some(at) = self.running.iter().position(|it| it.life() == work.life) {
                self.take_output(at, work)?;
            }
        }
        step.ended.iter().try_for_each(|load| self.take_load(load))
    }

    fn take_output(&mut self, at: usize, work: &Work) -> Check {
        let request = &mut self.running[at];
        request.num_in_flight -= work.num_new;
        request.num_placeholders -= work.num_sampled();
        request.num_computed -= work.num_drafts - work.num_right;
        if !work.samples {
            return Ok(());
        }
        let is_over = request.take_sampled(work.num_written);
        let request = self.running.remove(at);
        if self.setup.is_async || self.setup.num_drafts > 0 {
            self.commit(&request)?;
        }
        if is_over {
            return self.end(&request);
        }
        self.running.insert(at, request);
        Ok(())
    }

    /// Enters what was not known, or not certain, when it got room.
    fn commit(&mut self, request: &Request) -> Check {
        let handle = self.open(request)?;
        let num_computed = request.num_computed - request.num_in_flight;
        let is_noop = self.manager.is_commit_noop(handle, num_computed);
        let before = self.manager.store().num_changes();
        let committed = self.manager.commit(handle, &request.progress(), num_computed);
        committed.map_err(|error| format!("commit: {error}"))?;
        let is_same = before == self.manager.store().num_changes();
        ensure!(!is_noop || is_same, "a commit that should change nothing");
        Ok(())
    }

    fn take_load(&mut self, load: &Load) -> Check {
        if let Some(at) = self.aborted.iter().position(|it| it.life() == load.life) {
            let request = self.aborted.remove(at);
            return self.end(&request);
        }
        let mut holding = self.holding.iter();
        let Some(at) = holding.position(|it| it.life() == load.life) else { return Ok(()) };
        if load.fails && self.setup.connector == Connector::Beside {
            let request = self.holding.remove(at).expect("it is there");
            return self.end(&request);
        }
        let valid = self.num_valid(load);
        let request = &mut self.holding[at];
        request.stage = Stage::Loaded { valid };
        // A load that failed is not tried again.
        request.reach = if load.fails { 0 } else { request.reach };
        Ok(())
    }
}
