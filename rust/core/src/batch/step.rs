//! The questions of a step: hits, chunks, room, copies, and what became of them.

use super::{BlockManager, Match, Rest, Row};
use crate::engine::hit::Hit;
use crate::engine::requests::known_row;
use crate::engine::{BlockCopy, PrefillCheckpoint};
use crate::error::Error;
use crate::rules::vllm::{AllocateArgs, RequestProgress};
use crate::store::Store;

impl BlockManager {
    /// A step begins.
    pub fn tick(&mut self) {
        let rows = &self.rows;
        self.core
            .start_step_after(|it| it.position <= rows[known_row(it.handle)].progress.num_computed);
    }

    /// Returns true if a running request is about to leave a checkpoint that this one can resume from. Requests
    /// behind it are not held back.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn waits_for_checkpoint(&mut self, handle: u64) -> Result<bool, Error> {
        let progress = self.rows[self.row(handle)?].progress;
        Ok(self.core.expects_checkpoints() && self.core.hits_more_later(handle, &progress))
    }

    /// Tokens that a waiting request would compute if it were admitted now. Takes nothing.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn num_uncached(&self, handle: u64) -> Result<u32, Error> {
        let progress = &self.rows[self.row(handle)?].progress;
        let is_asked = self.config.enable_caching && progress.is_waiting;
        Ok(if is_asked { self.core.num_uncached(handle, progress) } else { progress.num_tokens })
    }

    /// How many leading tokens need not be computed, at most all but one, and what ends them. Takes nothing. Nothing
    /// for a request that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn match_prefix(&mut self, handle: u64) -> Result<Hit, Error> {
        let progress = self.rows[self.row(handle)?].progress;
        if !progress.is_waiting {
            return Ok(Hit::default());
        }
        self.search(handle, progress.num_tokens.saturating_sub(1))
    }

    fn search(&mut self, handle: u64, limit: u32) -> Result<Hit, Error> {
        if !self.config.enable_caching {
            return Ok(Hit::default());
        }
        let row = known_row(handle);
        let progress = self.rows[row].progress;
        let found = self.core.longest_usable_hit(handle, limit, &progress)?;
        let (num_tokens, num_uncached) = (found.num_tokens, found.num_uncached);
        let branch = if num_uncached > 0 { num_tokens + num_uncached } else { 0 };
        let num_changes = self.store().num_changes();
        self.rows[row].progress.shared_prefix_boundary = branch;
        self.rests[row].matched = Some(Match { found, num_changes });
        Ok(Hit { num_tokens, limit: self.core.ended_by(handle).unwrap_or_default(), branch })
    }

    /// Tokens after `start` that one step computes, at most `most`: a chunk ends where a checkpoint is wanted.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn chunk(&mut self, handle: u64, start: u32, most: u32) -> Result<u32, Error> {
        let progress = self.rows[self.row(handle)?].progress;
        Ok(self.core.next_boundary(handle, &progress, start, start.saturating_add(most))? - start)
    }

    /// Makes room for `num_new_tokens[i]` more tokens of each request, and for `lookahead` more
    /// that may be rejected, in order. Those that are known are taken for computed: the blocks that
    /// they fill can be hit from now on.
    ///
    /// The first allocation of a request adopts the prefix that [`BlockManager::match_prefix`] found;
    /// the new tokens are those after it. All known tokens must have room then. Returns how many requests were
    /// served: the first one that does not fit and all after it are left as they were. Nor does one fit whose prefix
    /// was evicted since. While nothing else runs, one that does not fit with its prefix goes on without it the next
    /// time.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::RequestTooLarge`] and [`Error::InvalidArgument`] (lengths
    /// differ, a handle twice, no token for a request without blocks); then nothing was allocated.
    pub fn allocate(
        &mut self,
        handles: &[u64],
        num_new_tokens: &[u32],
        lookahead: u32,
    ) -> Result<usize, Error> {
        self.check_batch(handles, num_new_tokens.len())?;
        self.check_size(u64::from(lookahead))?;
        for (&handle, &num_new) in handles.iter().zip(num_new_tokens) {
            let row = known_row(handle);
            let progress = &self.rows[row].progress;
            if !progress.is_waiting {
                self.check_size(u64::from(progress.num_computed) + u64::from(num_new))?;
                continue;
            }
            self.check_size(u64::from(num_new))?;
            if num_new == 0 {
                return Err(Error::InvalidArgument(format!(
                    "request {:?} waits for its first blocks; ask for room for at least 1 token",
                    self.core.id(handle).unwrap_or_default()
                )));
            }
            let start = match &self.rests[row].matched {
                Some(matched) => matched.found.num_tokens,
                None => self.match_prefix(handle)?.num_tokens,
            };
            self.check_size(u64::from(start) + u64::from(num_new))?;
        }
        for (at, (&handle, &num_new)) in handles.iter().zip(num_new_tokens).enumerate() {
            let row = known_row(handle);
            let progress = self.rows[row].progress;
            let has_room = if progress.is_waiting {
                self.admit(handle, num_new, lookahead)?
            } else {
                self.core.is_row_noop(row, &progress, num_new, lookahead)
                    || self.grow(handle, &progress, num_new, lookahead)?
            };
            if !has_room {
                return Ok(at);
            }
            let row = &mut self.rows[row];
            let end = row.progress.num_computed + num_new;
            let room = (end + lookahead).min(self.max_request_tokens);
            row.num_allocated = row.num_allocated.max(room);
            row.num_entered = row.num_entered.max(end.min(progress.num_tokens));
        }
        Ok(handles.len())
    }

    fn grow(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
        num_new: u32,
        num_lookahead: u32,
    ) -> Result<bool, Error> {
        let args = AllocateArgs {
            num_new,
            num_lookahead,
            num_encoder: self.num_encoder,
            has_scheduled: true,
            ..AllocateArgs::default()
        };
        self.core.allocate_into(handle, progress, &args, &mut self.new)
    }

    fn admit(&mut self, handle: u64, num_new: u32, num_lookahead: u32) -> Result<bool, Error> {
        let row = known_row(handle);
        let num_changes = self.store().num_changes();
        if let Some(earlier) = self.rests[row].matched.take_if(|it| it.num_changes != num_changes) {
            let num_tokens = earlier.found.num_tokens;
            if self.search(handle, num_tokens)?.num_tokens != num_tokens {
                // The request is refused until its caller has asked how much is left.
                self.rests[row].matched = Some(earlier);
                return Ok(false);
            }
        }
        let (progress, matched) = (self.rows[row].progress, self.rests[row].matched.take());
        let found = matched.as_ref().map(|it| &it.found).filter(|it| it.num_tokens > 0);
        let num_hit = found.map_or(0, |it| it.num_tokens);
        let args = AllocateArgs {
            num_new,
            num_new_computed: num_hit,
            computed: found.map(|it| &*it.blocks),
            num_lookahead,
            num_encoder: self.num_encoder,
            full_sequence_must_fit: true,
            has_scheduled: self.num_running > 0,
            ..AllocateArgs::default()
        };
        if !self.core.allocate_into(handle, &progress, &args, &mut self.new)? {
            self.rests[row].matched = matched;
            if self.num_running == 0 && num_hit > 0 {
                // Alone it may fit without holding a checkpoint beside its own state.
                self.search(handle, 0)?;
            }
            return Ok(false);
        }
        let row = &mut self.rows[row];
        row.progress.is_waiting = false;
        row.progress.num_computed = num_hit;
        self.num_running += 1;
        self.stats.queries += u64::from(progress.num_tokens);
        self.stats.hits += u64::from(num_hit);
        Ok(true)
    }

    /// Block copies to run before the forward pass, since the last call. No block is both read and written. The
    /// copies hold no block after this call: whatever takes its place is written in a later step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a block is to be read and overwritten in one step.
    pub fn take_copies(&mut self) -> Result<Vec<BlockCopy>, Error> {
        self.core.take_disjoint_copies()
    }

    /// Returns the states to be kept from inside the forward pass that runs after the copies, since the last call. Each
    /// can be hit once [`BlockManager::advance`] has recorded the pass and the next step begins.
    pub fn take_prefill_checkpoints(&mut self) -> Vec<PrefillCheckpoint> {
        self.core.take_prefill_checkpoints()
    }

    /// Records that `num_tokens[i]` more tokens of each request were computed, or that a step was
    /// started that computes them. They are at least those that were known when they got room;
    /// drafts may be rejected.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice, a request without
    /// blocks, more tokens than exist or have room, fewer than got room); then nothing was recorded.
    pub fn advance(&mut self, handles: &[u64], num_tokens: &[u32]) -> Result<(), Error> {
        self.check_batch(handles, num_tokens.len())?;
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            self.check_advance(handle, num_new)?;
        }
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            self.rows[known_row(handle)].progress.num_computed += num_new;
        }
        Ok(())
    }

    fn check_advance(&self, handle: u64, num_new: u32) -> Result<(), Error> {
        let Row { progress, num_allocated, num_entered } = self.rows[known_row(handle)];
        let end = u64::from(progress.num_computed) + u64::from(num_new);
        let room = num_allocated.min(progress.num_tokens);
        if !progress.is_waiting && (u64::from(num_entered)..=u64::from(room)).contains(&end) {
            return Ok(());
        }
        let id = self.core.id(handle).unwrap_or_default();
        let num_computed = progress.num_computed;
        Err(Error::InvalidArgument(if progress.is_waiting {
            format!("request {id:?} waits for its first blocks; allocate them")
        } else if end > u64::from(room) {
            format!(
                "request {id:?} has {num_computed} tokens computed and room for {room}: {num_new} more cannot have been"
            )
        } else {
            format!(
                "request {id:?} got room for {num_entered} known tokens, of which {num_computed} + {num_new} are \
                 computed; compute all of them, or preempt it"
            )
        }))
    }

    /// Gives back the blocks of requests whose tokens will have to be computed again; what is
    /// cached of them can be matched.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] (a handle twice); then nothing changed.
    pub fn preempt(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.check_batch(handles, handles.len())?;
        for &handle in handles {
            self.settle(handle)?;
            self.core.suspend(handle)?;
            let row = &mut self.rows[known_row(handle)];
            let progress = RequestProgress {
                num_computed: 0,
                is_waiting: true,
                was_preempted: row.progress.was_preempted || !row.progress.is_waiting,
                ..row.progress
            };
            *row = Row { progress, ..Row::default() };
            self.rests[known_row(handle)].matched = None;
            self.stats.preemptions += 1;
        }
        Ok(())
    }

    /// Gives back the blocks of requests and forgets the requests.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] (a handle twice); then nothing changed.
    pub fn free(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.check_batch(handles, handles.len())?;
        for &handle in handles {
            self.settle(handle)?;
            self.core.finish(handle)?;
            self.rows[known_row(handle)] = Row::default();
            self.rests[known_row(handle)] = Rest::default();
        }
        Ok(())
    }

    /// Prepares a request for being given up: what got room and was not computed after all is found
    /// no more.
    fn settle(&mut self, handle: u64) -> Result<(), Error> {
        let Row { progress, num_entered, .. } = self.rows[known_row(handle)];
        if num_entered > progress.num_computed {
            self.core.drop_uncomputed(handle, &progress)?;
        }
        self.num_running -= usize::from(!progress.is_waiting);
        self.core.settle(handle, &progress)
    }
}
