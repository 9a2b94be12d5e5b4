//! Requests given as tokens: the manager hashes them itself.

use super::BlockManager;
use crate::digest::Digest;
use crate::engine::requests::known_row;
use crate::error::Error;
use crate::hash::{HashChain, Value};

impl BlockManager {
    /// Register a request by its prompt. `extras` holds one entry for each full hash block, or
    /// nothing when no block has extra keys. Returns the handle.
    ///
    /// # Errors
    /// [`Error::Hash`]; [`Error::DuplicateRequest`]; [`Error::RequestTooLarge`].
    pub fn add_prompt(
        &mut self,
        id: &str,
        tokens: &[i64],
        extras: &[Option<Value>],
    ) -> Result<u64, Error> {
        let mut digests = Vec::new();
        let seed = self.config.hashing.seed;
        let mut chain = HashChain::new(self.config.hash_block_size as usize, 0, seed)?;
        chain.append(&mut self.hasher, tokens, extras, &mut digests)?;
        self.add_hashed(id, chain, digests)
    }

    /// Register a request whose prompt was hashed already: all `digests` that `chain` made so far.
    /// Returns the handle.
    ///
    /// # Errors
    /// [`Error::DuplicateRequest`]; [`Error::RequestTooLarge`]; [`Error::InvalidArgument`] if the
    /// digests are not one a full hash block.
    pub fn add_hashed(
        &mut self,
        id: &str,
        chain: HashChain<i64>,
        digests: Vec<Digest>,
    ) -> Result<u64, Error> {
        let num_tokens = u32::try_from(chain.num_tokens()).map_err(|_| {
            Error::InvalidArgument(format!("{} tokens are more than 2^32", chain.num_tokens()))
        })?;
        let handle = self.add_request(id, num_tokens, digests)?;
        self.engine.requests.rows[known_row(handle)].rest.chain = Some(chain);
        Ok(handle)
    }

    /// Append one token to each request, as after sampling.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice, a
    /// request that was registered by digests); then nothing was appended.
    pub fn append_tokens(&mut self, handles: &[u64], tokens: &[i32]) -> Result<(), Error> {
        self.check_batch(handles, tokens.len())?;
        for &handle in handles {
            let request = &self.engine.requests.rows[known_row(handle)];
            if request.rest.chain.is_none() {
                return Err(Error::InvalidArgument(format!(
                    "request {:?} was added by digests; append digests to it",
                    request.id
                )));
            }
        }
        for (&handle, &token) in handles.iter().zip(tokens) {
            let row = known_row(handle);
            let request = &mut self.engine.requests.rows[row];
            if let Some(chain) = &mut request.rest.chain {
                chain.append(&mut self.hasher, &[i64::from(token)], &[], &mut request.digests)?;
            }
            if let Some(matched) = &mut request.rest.matched {
                matched.is_outgrown = true;
            }
            self.engine.requests.progress_mut(row).num_tokens += 1;
        }
        Ok(())
    }
}
