//! Allocation, and in plain setups the prediction of hits.

use hybrid_blocks::{Error, PoolId, Store};

use crate::request::Request;
use crate::world::{Check, World, ensure};

impl World {
    /// The longest prefix, at most `limit` tokens and all tokens but one, after which every group
    /// finds all that the next token looks at.
    pub(crate) fn longest_hit(&self, request: &Request, limit: u32) -> u32 {
        let limit = limit.min(request.num_tokens().saturating_sub(1));
        let restorable = |hit: u32| {
            self.groups().all(|(id, group)| {
                let (size, first) = (group.block_size, group.first_seen(hit));
                hit.is_multiple_of(size)
                    && (1..=hit / size)
                        .map(|block| block * size)
                        .filter(|&end| end > first)
                        .all(|end| self.stored.contains_key(&(id, self.digest(request, end))))
            })
        };
        (0..=limit).rev().find(|&hit| restorable(hit)).unwrap_or(0)
    }

    /// Tokens after which the next allocation of a request starts.
    fn start(&mut self, at: usize) -> Result<u32, String> {
        match &self.requests[at] {
            request if request.running => Ok(request.computed),
            Request { promised: Some(hit), .. } => Ok(*hit),
            _ => self.match_prefix(at),
        }
    }

    /// Makes room for tokens of several requests, and runs the copies that follow from it. Returns
    /// how many were served.
    pub(crate) fn allocate(
        &mut self,
        batch: &[(usize, u32)],
        lookahead: u32,
    ) -> Result<usize, String> {
        let plain = self.setup.is_plain();
        let mut counts = Vec::with_capacity(batch.len());
        for &(at, n) in batch {
            // An admission computes at least one token.
            let n = n.max(u32::from(!self.requests[at].running));
            counts.push(if plain { n } else { self.chunk(at, n)? });
        }
        let picked: Vec<usize> = batch.iter().map(|&(at, _)| at).collect();
        let mut ends = Vec::with_capacity(batch.len());
        for (&at, n) in picked.iter().zip(&counts) {
            ends.push(self.start(at)? + n);
        }
        let before = self.dump();
        let result = self.system.allocate(&self.handles(&picked), &counts, lookahead);
        let most = self.system.max_request_tokens();
        if ends.iter().chain([&lookahead]).any(|&end| end > most) {
            let refused = matches!(result, Err(Error::RequestTooLarge { .. }));
            ensure!(refused, "up to {ends:?} tokens have no room: {result:?}");
            ensure!(before == self.dump(), "a refused allocation changed something");
            return Ok(0);
        }
        let served = result.map_err(|error| format!("allocate: {error}"))?;
        let num_copies = self.run_copies()?;
        for (i, (&at, &n)) in picked[..served].iter().zip(&counts).enumerate() {
            self.check_served(at, n, lookahead, i + 1 == served)?;
        }
        self.settle()?;
        // Copies that were taken hold no block any more: there may be room now.
        if let Some(&at) = picked.get(served).filter(|_| num_copies == 0) {
            self.check_refused(at, counts[served], lookahead)?;
        }
        Ok(served)
    }

    /// A request was served: its tables reach as far as they must, with blocks of its own.
    fn check_served(&mut self, at: usize, num_new: u32, lookahead: u32, is_last: bool) -> Check {
        let progress = self.system.progress(self.requests[at].handle);
        let (_, start, allocated) = progress.map_err(|error| error.to_string())?;
        let request = &mut self.requests[at];
        let had_room = if request.running { request.allocated } else { start };
        if !request.running {
            // Requests before it in the batch may have evicted some of its hit.
            let most = request.promised.unwrap_or(u32::MAX);
            ensure!(start <= most, "a hit of {start} tokens, {most} were promised");
            request.running = true;
            request.computed = start;
            self.has_admitted = true;
        }
        let request = &mut self.requests[at];
        // No drafter looks ahead behind the longest request.
        let most = (start + num_new + lookahead).min(self.system.max_request_tokens());
        request.allocated = request.allocated.max(most);
        request.entered = request.entered.max((start + num_new).min(request.num_tokens()));
        ensure!(allocated == request.allocated, "room for {allocated}, not {}", request.allocated);
        let request = &self.requests[at];
        self.look_at_states(request, start)?;
        for (id, group) in self.groups().filter(|(_, group)| group.is_attention()) {
            let table = self.system.table(request.handle, id);
            let expected = request.allocated.div_ceil(group.block_size);
            ensure!(table.len() as u32 >= expected, "{} blocks of {expected}", table.len());
            for &block in &table[had_room.div_ceil(group.block_size) as usize..] {
                let owners = self.system.store().pool(PoolId(group.pool)).ref_count(block);
                // Requests behind it may have hit what it computes.
                ensure!(
                    owners == 1 || (owners > 1 && !is_last),
                    "new block {block} of group {id} has {owners} owners"
                );
            }
        }
        Ok(())
    }

    /// A request was refused: asking again changes nothing.
    fn check_refused(&mut self, at: usize, count: u32, lookahead: u32) -> Check {
        let request = &self.requests[at];
        let nobody_runs = self.requests.iter().all(|request| !request.running);
        if !request.running && nobody_runs {
            // Alone, what was refused with its hit would be tried without it the next time.
            return self.match_prefix(at).map(drop);
        }
        let (handle, before) = (request.handle, self.dump());
        let again = self.system.allocate(&[handle], &[count], lookahead);
        ensure!(again == Ok(0), "refused, then {again:?}");
        let after = self.dump();
        ensure!(before == after, "a second refusal changed something:\n{before}\n{after}");
        Ok(())
    }
}
