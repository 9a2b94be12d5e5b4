//! What clients say of their requests: which session they belong to, and whether it goes on. Over slabs it
//! guides what is evicted; in a fixed store eviction is vLLM's, and nothing changes.

use super::KvCacheManager;
use super::call::Call;
use super::listener::Listener;
use crate::digest::Digest;
use crate::error::Error;
use crate::ids::{BlockId, PoolId};
use crate::prefix_index::Key;
use crate::rules::sessions::{Hint, WorthClass, number_of};
use crate::store::Store;

impl<S: Store> KvCacheManager<S> {
    /// Say that a request is a turn of a session, by any name that its turns share, and how the session goes
    /// on after it. To be called before it is admitted.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_session(
        &mut self,
        handle: u64,
        session_id: Option<&str>,
        hint: Hint,
    ) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        if !self.store().is_slabbed() || !self.config.enable_caching() {
            return Ok(());
        }
        let row = &mut self.engine.requests.rows[row];
        row.rest.is_named = session_id.is_some() || hint != Hint::None;
        row.rest.hint = hint;
        if row.rest.is_named {
            row.rest.session = number_of(session_id.unwrap_or(&row.id));
            let store = &self.engine.cache.store;
            self.listener.get_or_insert_with(|| Box::new(Listener::new(store)));
        }
        Ok(())
    }

    /// Say how a session goes on of which no request runs: as if it had been said of its last request. Returns
    /// whether that one is remembered.
    pub fn set_session_hint(&mut self, session_id: &str, hint: Hint) -> bool {
        let store = &mut self.engine.cache.store;
        let listener = self.listener.as_mut();
        listener.is_some_and(|it| it.on_hint(store, number_of(session_id), hint))
    }

    /// Whether anything was said of any request so far.
    #[must_use]
    pub fn has_sessions(&self) -> bool {
        self.listener.is_some()
    }

    /// As [`KvCacheManager::free`], for a request that is over: what was said of its session decides which of
    /// its content goes first, and which is kept longer. One that never ran says something of its
    /// session's last request.
    ///
    /// # Errors
    /// [`Error::NotLive`] where others freed its blocks.
    pub fn finish(&mut self, handle: u64) -> Result<(), Error> {
        let (Some(row), Some(mut listener)) = (self.row(handle), self.listener.take()) else {
            return self.free(handle);
        };
        let rest = &self.engine.requests.rows[row].rest;
        let (session, is_named, hint) = (rest.session, rest.is_named, rest.hint);
        let (class, has_run) = (WorthClass::new(rest.num_turns, hint), self.holds_blocks(row));
        let mut own = Vec::new();
        if has_run {
            let planned = rest.plan.as_ref().map_or(&[][..], |plan| plan.lengths.as_slice());
            let places = planned.iter().filter_map(|&length| self.digest_at(row, length));
            let last = self.engine.requests.rows[row].digests.last();
            listener.on_end(class, session, places.chain(last));
            if is_named {
                own = self.own_blocks(row, &listener);
            }
        }
        let freed = self.free(handle);
        let store = &mut self.engine.cache.store;
        if has_run && is_named {
            listener.on_left(store, class, session, &own);
        } else if is_named && hint != Hint::None {
            listener.on_hint(store, session, hint);
        }
        self.listener = Some(listener);
        freed
    }

    /// The digest of a request's first tokens.
    fn digest_at(&self, row: usize, num_tokens: u32) -> Option<&Digest> {
        let at = (num_tokens / self.config.hash_block_size).checked_sub(1)?;
        self.engine.requests.rows[row].digests.get(at as usize)
    }

    /// The content of a request that nobody but its session is known to need.
    fn own_blocks(&self, row: usize, listener: &Listener) -> Vec<(PoolId, BlockId)> {
        let request = &self.engine.requests.rows[row];
        let (cache, mut own) = (&self.engine.cache, Vec::new());
        let num_hashed = request.digests.len() as u32 * self.config.hash_block_size;
        for (group, config) in cache.groups.iter().zip(&self.config.groups) {
            if !config.is_cacheable() {
                continue;
            }
            let (pool, size) = (group.spec.pool, config.block_size);
            let mut add = |num_tokens: u32| {
                let digest = self.digest_at(row, num_tokens);
                let key = digest.map(|&digest| Key { digest, group: group.id });
                let block = key.and_then(|key| cache.store.get(pool, &key));
                let is_own =
                    |block: &BlockId| listener.owners.is_own(pool, *block, request.rest.session);
                own.extend(block.filter(is_own).map(|block| (pool, block)));
            };
            if config.kind.is_aligned() {
                request.rest.checkpoints.iter().copied().for_each(&mut add);
            } else {
                (1..=num_hashed / size).map(|at| at * size).for_each(&mut add);
            }
        }
        own
    }
}

impl<S: Store> Call<'_, S> {
    /// Take note of a prompt that is being admitted.
    pub(super) fn listen(&mut self) {
        let Some(listener) = self.listener.as_deref_mut() else { return };
        if !std::mem::replace(&mut self.request.was_heard, true) && !self.request.is_known {
            self.request.num_turns = listener.on_arrival(self.request.session, self.digests);
        }
    }

    /// Blocks of a group hold what the request computed.
    pub(super) fn own(&mut self, group: usize, blocks: &[BlockId]) {
        let pool = self.pool(group);
        if let Some(listener) = self.listener.as_deref_mut() {
            listener.owners.set(pool, blocks, self.request.session);
        }
    }

    /// The request goes on from a hit of a group.
    pub(super) fn go_on_from(&mut self, group: usize, hit: &[BlockId], num_tokens: u32) {
        let pool = self.pool(group);
        let is_state = self.config_of(group).kind.is_aligned();
        if let Some(listener) = self.listener.as_deref_mut().filter(|_| !hit.is_empty()) {
            listener.owners.go_on(pool, hit, self.request.session);
            if is_state {
                self.request.checkpoints.push(num_tokens);
            }
        }
    }
}
