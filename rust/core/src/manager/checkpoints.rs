//! Checkpoints: copies of recurrent states that later requests go on from.

use super::Manager;
use crate::error::Error;
use crate::event::Event;
use crate::group::Group;
use crate::ids::{BlockId, GroupId, PoolId};
use crate::lineage::Origin;
use crate::store::Store;

/// Bytes to be copied on the device before the next forward pass, from one block of a group to
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockCopy {
    /// Group.
    pub group: GroupId,
    /// Source.
    pub src: BlockId,
    /// Destination.
    pub dst: BlockId,
}

impl Manager {
    /// The next length at which a prefill has to pause so that a checkpoint can be taken: a chunk
    /// must not run across it.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn next_boundary(&self, handle: u64) -> Result<Option<u32>, Error> {
        let row = self.requests.row(handle)?;
        if !self.config.enable_caching || !self.coordinator.has_states() {
            return Ok(None);
        }
        let request = &self.requests.rows[row];
        let progress = self.requests.progress[row];
        let (marks, start) = if progress.running {
            (request.marks, progress.num_computed)
        } else {
            let hit = request.matched.map_or_else(Default::default, |(hit, _)| hit);
            (self.marks(progress.num_tokens, hit), hit.num_tokens)
        };
        Ok(self.config.placement.next(&marks, start, self.coordinator.alignment()))
    }

    /// Copies to run before the next forward pass, in this order. Their sources are held until the
    /// next call.
    ///
    /// # Errors
    /// [`Error::NotLive`] if a held block lost its owner, which is a bug.
    pub fn take_copies(&mut self) -> Result<Vec<BlockCopy>, Error> {
        self.version += 1;
        for (pool, block) in std::mem::take(&mut self.copied) {
            self.store.free(pool, std::iter::once(block))?;
        }
        self.copied = std::mem::take(&mut self.held);
        Ok(std::mem::take(&mut self.copies))
    }

    /// Checkpoints that copies still read from.
    pub(super) fn held_blocks(&self) -> impl Iterator<Item = (PoolId, BlockId)> + '_ {
        self.held.iter().chain(&self.copied).copied()
    }

    /// Have the adopted checkpoint copied into the request's own slot.
    pub(super) fn fork(&mut self, row: usize) {
        let num_computed = self.requests.progress[row].num_computed;
        self.requests.rows[row].num_turns = 0;
        for index in 0..self.coordinator.groups().len() {
            let group = self.coordinator.groups()[index];
            let tables = self.requests.tables_of(row);
            let table = &mut self.requests.tables[tables][index];
            let Some((src, dst)) = table.fork.take().zip(Group::state_slot(table)) else {
                continue;
            };
            self.copies.push(BlockCopy { group: group.id, src, dst });
            self.held.push((group.spec.pool, src));
            self.stats.forks += 1;
            if self.is_first_state(&group) {
                let request = &mut self.requests.rows[row];
                request.num_turns = self.lineage.go_on(src);
                request.checkpoints.extend([self.lineage.spare(src), num_computed]);
            }
            let priority = self.priority(row, &group, src, num_computed);
            self.store.set_priority(group.spec.pool, src, priority);
        }
    }

    fn is_first_state(&self, group: &Group) -> bool {
        self.coordinator.first_state().is_some_and(|first| first.id == group.id)
    }

    /// Keep a copy of the state if the request has just reached a length where one is wanted and
    /// memory allows it.
    pub(super) fn leave_checkpoint(&mut self, row: usize) -> Result<(), Error> {
        if !self.config.enable_caching || !self.coordinator.has_states() {
            return Ok(());
        }
        let num_computed = self.requests.progress[row].num_computed;
        let marks = self.requests.rows[row].marks;
        let (placement, alignment) = (self.config.placement, self.coordinator.alignment());
        let follows = placement.follows(&marks, num_computed, alignment);
        if follows {
            self.drop_following(row);
        } else if num_computed == 0
            || placement.next(&marks, num_computed - 1, alignment) != Some(num_computed)
        {
            return Ok(());
        }
        let missing: Vec<Group> = self.missing_checkpoints(row).collect();
        self.demand.fill(0);
        for group in &missing {
            self.demand[group.spec.pool.index()] += 1;
        }
        if self.store.reserve(&self.demand, &mut self.reservation).is_err() {
            return Ok(());
        }
        let request = &mut self.requests.rows[row];
        request.checkpoints.push(num_computed);
        if !follows {
            request.marks.num_taken += 1;
        } else if !missing.is_empty() {
            request.marks.following = num_computed;
        }
        // All are taken before any is given up, so that none takes the place of another.
        let mut taken = Vec::with_capacity(missing.len());
        for group in &missing {
            let pool = group.spec.pool;
            let table = self.requests.table(row, group.id);
            let near = Group::state_slot(table).and_then(|src| self.store.slab_of(pool, src));
            self.store.take(pool, 1, near, &mut self.reservation, &mut taken);
        }
        for (group, &dst) in missing.iter().zip(&taken) {
            let pool = group.spec.pool;
            let table = self.requests.table(row, group.id);
            if let Some(src) = Group::state_slot(table) {
                self.copies.push(BlockCopy { group: group.id, src, dst });
                self.key_state(row, group, dst);
            }
            let priority = self.priority(row, group, dst, num_computed);
            self.store.set_priority(pool, dst, priority);
            self.store.free(pool, std::iter::once(dst))?;
            self.stats.checkpoints += 1;
        }
        self.collect_evictions();
        Ok(())
    }

    /// Give up the copy that followed the generation so far, unless somebody went on from it.
    fn drop_following(&mut self, row: usize) {
        let request = &mut self.requests.rows[row];
        let num_tokens = std::mem::take(&mut request.marks.following);
        if num_tokens == 0 {
            return;
        }
        request.checkpoints.retain(|&other| other != num_tokens);
        for group in self.coordinator.groups().iter().filter(|group| group.is_state()) {
            if let Some(key) = group.state_key(&self.requests.rows[row].digests, num_tokens) {
                self.store.discard(group.spec.pool, &key);
            }
        }
        self.collect_evictions();
    }

    /// Keep the slot of a request that ends, if its length allows it.
    pub(super) fn keep_final_state(&mut self, row: usize) {
        let progress = self.requests.progress[row];
        if !self.requests.rows[row].marks.end
            || !self.config.enable_caching
            || !self.coordinator.has_states()
            || !progress.running
            || progress.num_computed == 0
            || !progress.num_computed.is_multiple_of(self.coordinator.alignment())
        {
            return;
        }
        let missing: Vec<Group> = self.missing_checkpoints(row).collect();
        if missing.is_empty() {
            return;
        }
        self.drop_following(row);
        self.requests.rows[row].checkpoints.push(progress.num_computed);
        for group in missing {
            let table = self.requests.table(row, group.id);
            if let Some(slot) = Group::state_slot(table) {
                self.key_state(row, &group, slot);
                let priority = self.priority(row, &group, slot, progress.num_computed);
                self.store.set_priority(group.spec.pool, slot, priority);
            }
        }
    }

    /// Groups that have no checkpoint yet where the request is.
    fn missing_checkpoints(&self, row: usize) -> impl Iterator<Item = Group> + '_ {
        let num_computed = self.requests.progress[row].num_computed;
        let digests = &self.requests.rows[row].digests;
        self.coordinator.groups().iter().filter(|group| group.is_state()).copied().filter(
            move |group| {
                group
                    .state_key(digests, num_computed)
                    .is_some_and(|key| self.store.get(group.spec.pool, &key).is_none())
            },
        )
    }

    fn key_state(&mut self, row: usize, group: &Group, block: BlockId) {
        let num_computed = self.requests.progress[row].num_computed;
        let Some(key) = group.state_key(&self.requests.rows[row].digests, num_computed) else {
            return;
        };
        self.store.insert_key(group.spec.pool, block, &key, num_computed);
        if self.is_first_state(group) {
            let request = &self.requests.rows[row];
            let origin = if request.marks.branch == num_computed {
                Origin::Branch
            } else if request.marks.prompt_end < num_computed {
                Origin::End
            } else {
                Origin::Prompt
            };
            self.lineage.leave(block, request.num_turns, origin);
        }
        if self.config.enable_events {
            self.events.push(Event::Stored {
                handle: self.requests.handle(row as u32),
                group: group.id,
                first_block: num_computed / group.spec.block_size - 1,
                block_size: group.spec.block_size,
                parent: None,
                digests: vec![key.digest],
            });
        }
    }
}
