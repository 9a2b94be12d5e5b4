//! What clients say of their requests: which session and which client they belong to, and whether the
//! session goes on. It guides what is kept, and changes nothing that is computed.

use super::BlockManager;
use crate::error::Error;
use crate::rules::sessions::{Hint, number_of};

impl BlockManager {
    /// Say that a request is a turn of a session, by any name that its turns share. Turns are then told
    /// apart even where the history was rewritten.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_session(&mut self, handle: u64, session_id: &str) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        self.engine.requests.rows[row].rest.trail.session = number_of(session_id);
        Ok(())
    }

    /// Say which client, or kind of clients, a request comes from, by a number below
    /// [`BlockManager::MAX_CLIENTS`]; 0 stands for no client. Where checkpoints go is learned for each.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] for a larger number.
    pub fn set_client(&mut self, handle: u64, client: u16) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        if client >= Self::MAX_CLIENTS {
            return Err(Error::InvalidArgument(format!(
                "client {client}: numbers lie below {}; let several clients share one",
                Self::MAX_CLIENTS
            )));
        }
        self.engine.requests.rows[row].rest.trail.client = client;
        Ok(())
    }

    /// Numbers of clients: what is learned of each takes some 700 bytes.
    pub const MAX_CLIENTS: u16 = 1_024;

    /// Say how the conversation of a request goes on; the last word before the request is freed counts.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_hint(&mut self, handle: u64, hint: Hint) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        self.engine.requests.rows[row].rest.trail.hint = hint;
        Ok(())
    }

    /// Say how a session goes on, at any time. It counts for the requests of the session that are known;
    /// if there is none, for what the last one left behind, as if it had been said before that
    /// request was freed. Returns whether a request of the session is known or remembered; one that
    /// ended long ago may be forgotten. Only [`Policy::FlopAware`](super::Policy::FlopAware) listens.
    pub fn set_session_hint(&mut self, session_id: &str, hint: Hint) -> bool {
        let session = number_of(session_id);
        let requests = &mut self.engine.requests;
        let rows: Vec<usize> = requests.rows_in_use().collect();
        let mut is_known = false;
        for row in rows {
            let request = &mut requests.rows[row].rest.trail;
            if request.session == session {
                request.hint = hint;
                is_known = true;
            }
        }
        is_known || self.keeper.on_hint(&mut self.engine.cache.store, session, hint)
    }
}
