//! What clients say of their requests: which session and which client they belong to, and whether the
//! session goes on. It guides what is kept, and changes nothing that is computed.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::BlockManager;
use super::hint::Hint;
use crate::error::Error;

impl BlockManager {
    /// Say that a request is a turn of a session, by any name that its turns share. Turns are then told
    /// apart even where the history was rewritten.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_session(&mut self, handle: u64, session_id: &str) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        let mut hasher = FxHasher::default();
        session_id.hash(&mut hasher);
        self.engine.requests.rows[row].rest.session = hasher.finish().max(1);
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
        self.engine.requests.rows[row].rest.client = client;
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
        self.engine.requests.rows[row].rest.hint = hint;
        Ok(())
    }
}
