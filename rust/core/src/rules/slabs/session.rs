//! Clients' words on their requests: which session they belong to, and whether it goes on. Over slabs they
//! guide what is evicted; in a fixed store eviction is vLLM's, and nothing changes.

use crate::engine::Engine;
use crate::error::Error;
use crate::learn::sessions::{Hint, number_of};
use crate::rules::vllm::KvCacheManager;
use crate::store::Store;

impl<S: Store> KvCacheManager<S> {
    /// Says that a request is a turn of a session, by any name that its turns share, and how the
    /// session goes on after it. To be called before it is admitted.
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
        let listens = self.store().is_slabbed();
        let row = &mut self.engine.requests.rows[row];
        row.rest.is_named = session_id.is_some() || hint != Hint::None;
        row.rest.trail.hint = hint;
        if row.rest.is_named {
            row.rest.trail.session = number_of(session_id.unwrap_or(&row.id));
        }
        if let Some(keeper) = self.keeper.as_deref_mut().filter(|_| row.rest.is_named && listens) {
            keeper.listen();
        }
        Ok(())
    }

    /// Says how the session of a request goes on; the last word before the request is freed counts.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub(crate) fn set_hint(&mut self, handle: u64, hint: Hint) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        let rest = &mut self.engine.requests.rows[row].rest;
        if rest.is_named {
            rest.trail.hint = hint;
            return Ok(());
        }
        self.set_session(handle, None, hint)
    }

    /// Says how a session goes on: of the requests of it that are known, or if there is none, as if
    /// it had been said of its last request. Returns whether there is one, or the last one is
    /// remembered.
    pub fn set_session_hint(&mut self, session_id: &str, hint: Hint) -> bool {
        let session = number_of(session_id);
        let Engine { requests, cache } = &mut self.engine;
        let rows: Vec<usize> = requests.taken().collect();
        let mut is_known = false;
        for row in rows {
            let trail = &mut requests.rows[row].rest.trail;
            if trail.session == session {
                trail.hint = hint;
                is_known = true;
            }
        }
        let keeper = self.keeper.as_deref_mut();
        is_known || keeper.is_some_and(|it| it.on_hint(&mut cache.store, session, hint))
    }

    /// Says which client, or kind of clients, a request comes from; 0 stands for no client.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub(crate) fn set_client(&mut self, handle: u64, client: u16) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        self.engine.requests.rows[row].rest.trail.client = client;
        Ok(())
    }

    /// Whether a client named a session or gave a hint so far.
    pub fn has_sessions(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.is_hinted)
    }

    /// As [`KvCacheManager::free`], for a request that is over: others may resume where it ends.
    /// One that never ran says something of its session's last request.
    ///
    /// # Errors
    /// [`Error::NotLive`] where others freed its blocks.
    pub fn finish(&mut self, handle: u64) -> Result<(), Error> {
        if let Some(row) = self.row(handle)
            && !self.holds_blocks(row)
            && let Some(keeper) = self.keeper.as_deref_mut()
        {
            let rest = &self.engine.requests.rows[row].rest;
            if rest.is_named && rest.trail.hint != Hint::None {
                keeper.on_hint(&mut self.engine.cache.store, rest.trail.session, rest.trail.hint);
            }
        }
        self.give_back(handle, true)
    }
}
