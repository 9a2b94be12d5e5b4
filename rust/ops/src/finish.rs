//! The end of a run: a request that fits alone finishes, and nothing is left behind.

use hybrid_blocks::{PoolId, Store};

use crate::op::Op;
use crate::request::Request;
use crate::setup::Setup;
use crate::tokens::Tokens;
use crate::world::{Check, World, ensure};

impl World {
    /// Carries every request to its end while the others make way, then frees all.
    pub(crate) fn finish(&mut self) -> Check {
        while let Some(request) = self.requests.first() {
            let num_tokens = request.num_tokens() + request.output;
            if num_tokens <= self.system.max_request_tokens() {
                let others: Vec<usize> = (1..self.requests.len()).collect();
                self.preempt(&others)?;
                self.finish_first()?;
            }
            self.free(&[0])?;
            self.settle()?;
        }
        self.run_copies()?;
        for pool in 0..self.setup.pools().len() as u32 {
            let live = self.system.store().pool(PoolId(pool)).num_live();
            ensure!(live == 0, "{live} blocks of pool {pool} have owners, but nobody is left");
        }
        let slabs = u64::from(self.setup.num_slabs) - 1;
        if !self.setup.blocks_per_slab.is_empty() {
            let whole = self.system.store().num_whole_slabs();
            ensure!(whole == slabs, "{whole} of {slabs} slabs are whole");
        }
        self.system.reset().map_err(|error| error.to_string())?;
        if !self.setup.blocks_per_slab.is_empty() {
            let free = self.system.store().num_free_slabs();
            ensure!(u64::from(free) == slabs, "{free} of {slabs} slabs are free");
        }
        self.settle()?;
        ensure!(self.stored.is_empty(), "{} keys outlived the reset", self.stored.len());
        Ok(())
    }

    fn finish_first(&mut self) -> Check {
        let mut misfits = 0;
        loop {
            let Request { id, running, computed, output, .. } = &self.requests[0];
            if *running && *output == 0 && *computed == self.requests[0].num_tokens() {
                return Ok(());
            }
            ensure!(
                misfits < 3,
                "{id} fits alone and is refused after {computed} tokens, {} whole slabs of {}",
                self.system.store().num_whole_slabs(),
                self.setup.num_slabs
            );
            if !self.step(0, Op::MAX_CHUNK)? {
                // A scheduler preempts the last request too.
                self.preempt(&[0])?;
                misfits += 1;
            }
            self.settle()?;
        }
    }
}

/// Computes a request as long as the manager allows, `steps` tokens at a time.
pub fn longest_request_finishes_alone(setup: &Setup, steps: &[u32]) -> Check {
    let mut world = World::new(setup);
    let system = &mut world.system;
    let most = system.max_request_tokens().min(300);
    let tokens: Tokens = (0..most.cast_signed()).collect();
    let digests = tokens.digests(setup.hash_block_size, 0..most / setup.hash_block_size);
    let added = system.add("longest", tokens.ids(), digests, None);
    let handle = added.map_err(|error| error.to_string())?;
    // Where no layer looks back across it, a border is a hit without any cache.
    let mut computed = system.match_prefix(handle).map_err(|error| error.to_string())?;
    let mut num_preempted = 0;
    let mut num_steps = 0;
    while computed < most {
        system.tick();
        let step = steps[num_steps % steps.len()].min(most - computed);
        num_steps += 1;
        if system.allocate(&[handle], &[step], 0) == Ok(0) {
            // The request may lie scattered once; after that it runs alone.
            ensure!(num_preempted == 0, "refused again after {computed} of {most} tokens");
            system.preempt(&[handle]).map_err(|error| error.to_string())?;
            num_preempted += 1;
            num_steps = 0;
            // The step ends and its copies are made, so their sources have no owner when the request comes back.
            system.take_copies().map_err(|error| error.to_string())?;
            system.take_prefill_checkpoints();
            computed = system.match_prefix(handle).map_err(|error| error.to_string())?;
            continue;
        }
        system.take_copies().map_err(|error| error.to_string())?;
        system.take_prefill_checkpoints();
        system.advance(&[handle], &[step]).map_err(|error| error.to_string())?;
        computed += step;
    }
    let progress = system.progress(handle);
    ensure!(progress == Ok((most, most, most)), "{progress:?} at the end of {most} tokens");
    Ok(())
}
