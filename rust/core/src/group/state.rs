//! Recurrent layers: a request holds a fixed number of state slots, whatever its length.
//!
//! The slots are taken at admission and given back at the end; nothing in between releases them. A
//! prefix can be resumed only where a copy of the state at exactly its end was kept, a checkpoint.

use super::{Group, Table};
use crate::digest::Digest;
use crate::error::Error;
use crate::ids::BlockId;
use crate::prefix_index::Key;
use crate::store::{BlockStore, Store};

impl Group {
    /// The key of the state after `num_tokens` tokens, a multiple of the block size.
    pub(crate) fn state_key(&self, digests: &[Digest], num_tokens: u32) -> Option<Key> {
        let block = (num_tokens / self.spec.block_size).checked_sub(1)? as usize;
        let digest = *digests.get((block + 1) * self.ratio - 1)?;
        Some(Key { digest, group: self.id })
    }

    /// The longest prefix, at most `limit` tokens and a multiple of `alignment`, whose end has a
    /// checkpoint.
    pub(super) fn longest_checkpoint(
        &self,
        store: &BlockStore,
        digests: &[Digest],
        limit: u32,
        alignment: u32,
    ) -> u32 {
        let found = (1..=limit / alignment).rev().find(|count| {
            self.state_key(digests, count * alignment)
                .is_some_and(|key| store.get(self.spec.pool, &key).is_some())
        });
        found.unwrap_or(0) * alignment
    }

    /// Hold the checkpoint at `hit` tokens, to be copied into the request's own slot.
    pub(super) fn adopt_checkpoint(
        &self,
        store: &mut BlockStore,
        digests: &[Digest],
        hit: u32,
        table: &mut Table,
    ) -> Result<(), Error> {
        if hit == 0 {
            return Ok(());
        }
        let checkpoint = self
            .state_key(digests, hit)
            .and_then(|key| store.get(self.spec.pool, &key))
            .ok_or_else(|| {
                Error::InvalidArgument(format!("group {}: no checkpoint at {hit} tokens", self.id))
            })?;
        store.touch(self.spec.pool, checkpoint)?;
        table.fork = Some(checkpoint);
        Ok(())
    }

    /// The slot that holds the state of the tokens computed so far.
    pub(crate) fn state_slot(table: &Table) -> Option<BlockId> {
        table.blocks.first().copied()
    }
}
