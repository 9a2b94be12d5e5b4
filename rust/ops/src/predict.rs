//! Allocation, and in plain setups the prediction of what it must answer.

use std::collections::BTreeSet;

use hybrid_blocks::{BlockId, Error};

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
                        .all(|end| self.stored.contains_key(&(id, request.tokens.digest(end))))
            })
        };
        (0..=limit).rev().find(|&hit| restorable(hit)).unwrap_or(0)
    }

    /// Blocks that are in tables now, by pool.
    fn live(&self) -> Vec<BTreeSet<u32>> {
        let mut live = vec![BTreeSet::new(); self.setup.pools().len()];
        for request in &self.requests {
            for (id, group) in self.groups() {
                let held = self.system.table(request.handle, id).iter();
                live[group.pool as usize].extend(held.filter(|b| !b.is_null()).map(|b| b.0));
            }
        }
        live
    }

    /// Whether a request can get room for `target` tokens, `hit` of them adopted.
    fn fits(&self, request: &Request, hit: u32, target: u32) -> bool {
        let mut live = self.live();
        let mut missing = vec![0u32; live.len()];
        for (id, group) in self.groups() {
            let (size, pool) = (group.block_size, group.pool as usize);
            let mut held = self.system.table(request.handle, id).len() as u32;
            if !request.running {
                held = hit / size;
                let first = group.first_seen(hit);
                for end in (1..=held).map(|block| block * size).filter(|&end| end > first) {
                    let cached =
                        self.system.cached_block(group.pool, id, request.tokens.digest(end));
                    live[pool].extend(cached.map(|block| block.0));
                }
            }
            missing[pool] += target.div_ceil(size).saturating_sub(held);
        }
        let mut slabs_needed = 0;
        for ((live, missing), &per_slab) in live.iter().zip(missing).zip(self.setup.pools()) {
            let slabs: BTreeSet<u32> = live.iter().map(|block| block / per_slab).collect();
            let slack = slabs.len() as u32 * per_slab - live.len() as u32;
            slabs_needed += slabs.len() as u32 + missing.saturating_sub(slack).div_ceil(per_slab);
        }
        slabs_needed < self.setup.num_slabs
    }

    /// Tokens after which the next allocation of a request starts; none if its match is gone.
    fn start(&self, request: &Request) -> Option<u32> {
        match request.promised {
            _ if request.running => Some(request.computed),
            None => Some(self.longest_hit(request, u32::MAX)),
            Some(hit) => (self.longest_hit(request, hit) == hit).then_some(hit),
        }
    }

    /// Make room for tokens of several requests, and run the copies that follow from it. Returns how
    /// many were served.
    pub(crate) fn allocate(
        &mut self,
        mut batch: Vec<(usize, u32)>,
        lookahead: u32,
    ) -> Result<usize, String> {
        let plain = self.setup.is_plain();
        if !plain {
            for (at, n) in &mut batch {
                *n = self.chunk(*at, *n)?;
            }
        }
        let (picked, counts): (Vec<usize>, Vec<u32>) = batch.into_iter().unzip();
        let starts: Vec<Option<u32>> = picked
            .iter()
            .map(|&at| match &self.requests[at] {
                request if plain => self.start(request),
                request if request.running => Some(request.computed),
                request => request.promised,
            })
            .collect();
        let targets: Vec<u32> = starts
            .iter()
            .zip(&counts)
            .map(|(start, n)| start.unwrap_or(0) + n + lookahead)
            .collect();
        let before = self.dump();
        let result = self.system.allocate(&self.handles(&picked), &counts, lookahead);
        if targets.iter().any(|&target| target > self.system.max_request_tokens()) {
            let refused = matches!(result, Err(Error::RequestTooLarge { .. }));
            ensure!(refused, "{targets:?} tokens have no room: {result:?}");
            ensure!(before == self.dump(), "a refused allocation changed something");
            return Ok(0);
        }
        let served = result.map_err(|error| format!("allocate: {error}"))?;
        ensure!(!plain || served > 0 || before == self.dump(), "nobody was served, yet it changed");
        self.run_copies()?;
        for (i, &at) in picked[..served].iter().enumerate() {
            let (mut start, mut target) = (starts[i], targets[i]);
            let request = &self.requests[at];
            if i > 0 && plain && !request.running && request.promised.is_none() {
                // Those before it in the batch may have evicted some of what it would have hit.
                let (_, hit, allocated) =
                    self.system.progress(request.handle).map_err(|error| error.to_string())?;
                ensure!(start.is_some_and(|start| hit <= start), "hit of {hit}, not {start:?}");
                ensure!(allocated == hit + counts[i] + lookahead, "room for {allocated}");
                (start, target) = (Some(hit), allocated);
            }
            self.check_served(at, start, target)?;
        }
        self.settle()?;
        if plain && let Some(&at) = picked.get(served) {
            self.check_refused(at, counts[served], lookahead)?;
        }
        Ok(served)
    }

    /// A request was served: its tables reach as far as they must, with blocks of its own.
    fn check_served(&mut self, at: usize, start: Option<u32>, target: u32) -> Check {
        let Some(start) = start else { return Err("served without its prefix".to_owned()) };
        let groups: Vec<_> = self.groups().collect();
        let request = &mut self.requests[at];
        let had_room = if request.running { request.allocated } else { start };
        if !request.running {
            request.running = true;
            request.computed = start;
            request.hashed = groups.iter().map(|(_, group)| start / group.block_size).collect();
        }
        request.allocated = request.allocated.max(target);
        let request = &self.requests[at];
        self.look(request, start)?;
        for (id, group) in groups.into_iter().filter(|(_, group)| group.is_attention()) {
            let table = self.system.table(request.handle, id);
            let expected = request.allocated.div_ceil(group.block_size);
            ensure!(table.len() as u32 == expected, "{} blocks, not {expected}", table.len());
            for &block in &table[had_room.div_ceil(group.block_size) as usize..] {
                let owners = self.system.num_owners(group.pool, block);
                ensure!(owners == 1, "new block {block} of group {id} has {owners} owners");
            }
        }
        Ok(())
    }

    /// A request was refused: it does not fit, and asking again changes nothing.
    fn check_refused(&mut self, at: usize, count: u32, lookahead: u32) -> Check {
        let request = &self.requests[at];
        let start = self.start(request);
        let fits = start.is_some_and(|start| {
            let target = start + count + lookahead;
            target <= request.allocated || self.fits(request, start, target)
        });
        ensure!(!fits, "{request:?} was refused");
        let handle = request.handle;
        let nobody_runs = self.requests.iter().all(|request| !request.running);
        if nobody_runs && start.is_some_and(|start| start > 0) {
            // Alone, what was refused with its hit is served without it.
            self.requests[at].promised = Some(0);
            return Ok(());
        }
        let before = self.dump();
        let again = self.system.allocate(&[handle], &[count], lookahead);
        ensure!(again == Ok(0), "refused, then {again:?}");
        ensure!(before == self.dump(), "a refused allocation changed something");
        Ok(())
    }

    /// Tokens were recorded as computed: blocks that they fill can be hit.
    pub(crate) fn enter(&mut self, at: usize, tables: &[Vec<BlockId>]) {
        if !self.setup.is_plain() {
            return;
        }
        let groups: Vec<_> = self.groups().collect();
        let request = &mut self.requests[at];
        for ((id, group), table) in groups.into_iter().zip(tables) {
            let hashed = &mut request.hashed[id as usize];
            let full = request.computed / group.block_size;
            for block in *hashed..full {
                if !table[block as usize].is_null() {
                    let digest = request.tokens.digest((block + 1) * group.block_size);
                    *self.stored.entry((id, digest)).or_default() += 1;
                }
            }
            *hashed = full.max(*hashed);
        }
    }
}
