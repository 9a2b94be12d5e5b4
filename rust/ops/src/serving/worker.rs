//! The worker's part of a step: zero, copy and compute.

use hybrid_blocks::vllm::KvCacheManager;
use hybrid_blocks::{BlockId, BlockStore, GroupKind, PoolId, PrefillCheckpoint, Storage, Store};

use super::engine::Engine;
use super::request::Request;
use super::step::{Step, Work};
use crate::memory::Place;
use crate::setup::Group;
use crate::world::{Check, ensure};

/// The bit of what a draft leaves that is not right.
const WRONG: u64 = 1 << 62;

impl Engine {
    pub(super) fn compute(&mut self, step: &mut Step) -> Check {
        self.zero();
        self.copy()?;
        step.ended = self.go_on_loading();
        let inside = self.prefill_checkpoints(step)?;
        for work in &mut step.work {
            // A request that was preempted in the step that it was scheduled in computes nothing.
            if let Some(at) = self.running.iter().position(|it| it.life() == work.life) {
                self.compute_one(at, work)?;
            }
        }
        for (place, content) in inside {
            self.memory.write(place, 0, content);
        }
        Ok(())
    }

    /// Where the step keeps states from inside its chunks, and what they are.
    fn prefill_checkpoints(&mut self, step: &Step) -> Result<Vec<(Place, u64)>, String> {
        let mut kept = Vec::new();
        for it in self.manager.take_prefill_checkpoints() {
            let PrefillCheckpoint { handle, group, position, src, dst } = it;
            let is_own = |request: &&Request| self.manager.find(&request.id) == Some(handle);
            let request = self.running.iter().find(is_own);
            let work = |request: &Request| step.work.iter().find(|it| it.life == request.life());
            let Some((request, work)) = request.and_then(|it| Some((it, work(it)?))) else {
                return Err(format!("{it:?} of a request that computes nothing"));
            };
            let inside = request.num_written + 1..request.num_written + work.num_new;
            ensure!(inside.contains(&position), "{it:?} outside {inside:?}");
            ensure!(work.num_new > 1 + self.setup.num_drafts, "{it:?} in a step with drafts");
            let running = self.manager.blocks(handle, group)[0];
            ensure!(src == running, "{it:?} keeps another state than {running}");
            let state = self.setup.groups[group.index()];
            ensure!(!state.is_attention(), "{it:?} of attention");
            let content = request.tokens.content(position) ^ u64::from(group.0);
            kept.push((self.setup.place(&state, dst.0), content));
        }
        self.num_inside += kept.len() as u64;
        Ok(kept)
    }

    fn zero(&mut self) {
        if self.setup.is_slabbed() {
            for slab in self.manager.take_started_slabs(false) {
                self.memory.zero_slab(slab);
            }
        } else {
            for block in self.manager.take_new_blocks() {
                self.memory.zero((0, block.0));
            }
        }
    }

    /// All sources are read before any destination is written.
    pub(super) fn copy(&mut self) -> Check {
        let copies = if self.setup.is_slabbed() {
            self.disjoint_copies()?
        } else {
            let pairs = take_copies(&mut self.manager)?;
            let Some(group) = self.setup.groups.iter().find(|group| !group.is_attention()) else {
                ensure!(pairs.is_empty(), "copies without states: {pairs:?}");
                return Ok(());
            };
            let place = |block: BlockId| self.setup.place(group, block.0);
            pairs.iter().map(|&(src, dst)| (place(src), place(dst))).collect()
        };
        self.memory.copy_all(&copies);
        Ok(())
    }

    /// Source and destination of each copy.
    fn disjoint_copies(&mut self) -> Result<Vec<(Place, Place)>, String> {
        let copies = self.manager.take_disjoint_copies();
        let copies = copies.map_err(|error| format!("copies: {error}"))?;
        let kinds = copies.iter().map(|copy| self.setup.groups[copy.group.index()].kind);
        for kind in kinds {
            ensure!(kind.storage() == Storage::Moving, "a copy of {kind}");
        }
        let places = copies
            .iter()
            .map(|it| ((it.src_pool.0, it.src.0), (it.dst_pool.0, it.dst.0)))
            .collect::<Vec<_>>();
        for &(src, dst) in &places {
            ensure!(places.iter().all(|it| it.0 != dst), "{dst:?} is read and written");
            let num_written = places.iter().filter(|it| it.1 == dst).count();
            ensure!(num_written == 1, "{dst:?} is written {num_written} times");
            ensure!(src.1 > 0 && dst.1 > 0, "a copy of the null block");
        }
        Ok(places)
    }

    fn compute_one(&mut self, at: usize, work: &mut Work) -> Check {
        let request = &self.running[at];
        let (start, num_drafts) = (request.num_written, work.num_drafts);
        let end = start + work.num_new;
        let num_right = end - num_drafts + work.num_right;
        let tables = self.tables(request);
        for (id, group) in self.groups() {
            let table = &tables[id as usize];
            if group.is_attention() {
                self.attend(at, (id, group), table, start..end, num_right)?;
            } else {
                self.recur(at, (id, group), table, work)?;
            }
        }
        work.num_written = num_right;
        let request = &mut self.running[at];
        request.num_written = num_right;
        request.column = work.num_right as usize;
        Ok(())
    }

    fn attend(
        &mut self,
        at: usize,
        (id, group): (u32, Group),
        table: &[BlockId],
        tokens: std::ops::Range<u32>,
        num_right: u32,
    ) -> Check {
        let request = &self.running[at];
        for token in group.first_seen(tokens.start)..tokens.start {
            let block = table[(token / group.block_size) as usize];
            ensure!(!block.is_null(), "token {token} of group {id} is gone: {request:?}");
            let place = self.setup.place(&group, block.0);
            let found = self.memory.read(place, token % group.block_size);
            let expected = request.tokens.content(token + 1) ^ u64::from(id);
            ensure!(
                found == Some(expected),
                "token {token} of group {id} in block {block} before {}: {request:?}",
                tokens.start
            );
        }
        for token in tokens {
            let block = table[(token / group.block_size) as usize];
            ensure!(!block.is_null(), "token {token} of group {id} has no block: {request:?}");
            let place = self.setup.place(&group, block.0);
            // The kernel multiplies what it masks by 0, and not a number stays one.
            ensure!(
                !self.setup.has_states() || self.memory.is_clean(place),
                "block {block} of group {id} was not zeroed: {request:?}"
            );
            let wrong = if token < num_right { 0 } else { WRONG };
            let content = request.tokens.content(token + 1) ^ u64::from(id) ^ wrong;
            self.memory.write(place, token % group.block_size, content);
        }
        Ok(())
    }

    fn recur(
        &mut self,
        at: usize,
        (id, group): (u32, Group),
        table: &[BlockId],
        work: &Work,
    ) -> Check {
        let request = &self.running[at];
        let (start, end) = (request.num_written, request.num_written + work.num_new);
        let GroupKind::MambaAligned { num_speculative, .. } = group.kind else {
            return Err(format!("{} has no worker", group.kind));
        };
        // The block after these tokens stands here; blocks of drafts follow it.
        let position = |num_tokens: u32| ((num_tokens - 1) / group.block_size) as usize;
        let place = |position: usize| {
            let block = table.get(position).copied().filter(|block| !block.is_null());
            let missing = || format!("state {position} of group {id} has no block: {request:?}");
            block.map(|block| self.setup.place(&group, block.0)).ok_or_else(missing)
        };
        if start > 0 {
            let read = place(position(start) + request.column)?;
            let expected = request.tokens.content(start) ^ u64::from(id);
            let found = self.memory.read(read, 0);
            ensure!(found == Some(expected), "state of group {id} after {start}: {request:?}");
        }
        // Without drafts one state is written; with them, one a token.
        let num_states = if work.samples { work.num_drafts.min(num_speculative) } else { 0 };
        for draft in 0..=num_states {
            let num_tokens = end - num_states + draft;
            let wrong = if draft <= work.num_right { 0 } else { WRONG };
            let content = request.tokens.content(num_tokens) ^ u64::from(id) ^ wrong;
            let written = place(position(end - num_states) + draft as usize)?;
            self.memory.write(written, 0, content);
        }
        Ok(())
    }
}

/// Blocks to copy, which are owned until that is done.
fn take_copies(
    manager: &mut KvCacheManager<BlockStore>,
) -> Result<Vec<(BlockId, BlockId)>, String> {
    let copies = manager.take_copies();
    let blocks = copies.iter().flat_map(|&(src, dst)| [src, dst]);
    manager.store_mut().free(PoolId(0), blocks).map_err(|error| error.to_string())?;
    Ok(copies)
}
