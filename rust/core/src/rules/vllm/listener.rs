//! [`Listener`]: what clients say of their sessions, heeded where content is evicted by age.
//!
//! What a session that is over left behind goes next. What a session that goes on left is treated as
//! used anew each time that it is among the older half of what is cached, as often as such sessions
//! are likelier than others to go on. How right each hint is, is learned: one that is not
//! changes nothing.

use std::collections::VecDeque;

use super::owners::Owners;
use crate::digest::Digest;
use crate::ids::{BlockId, PoolId};
use crate::rules::sessions::{Hint, LeftBlock, SessionEnd, Sessions, WorthClass};
use crate::store::{EvictionOrder, Store};

/// A session that is kept longer.
#[derive(Clone, Copy, Debug)]
struct Kept {
    session: u64,
    /// The tick at which it ended, or was used anew.
    since: u64,
    /// How often it is still to be used anew.
    num_left: u32,
}

/// Sessions, and what they left.
#[derive(Debug)]
pub(super) struct Listener {
    sessions: Sessions,
    pub(super) owners: Owners,
    /// The one that was used first comes first. Some ended anew since.
    kept: VecDeque<Kept>,
    /// Blocks evicted when that was last looked at.
    num_evicted: u64,
}

impl Listener {
    pub(super) fn new<S: Store>(store: &S) -> Self {
        Self {
            sessions: Sessions::new(store),
            owners: Owners::new(store),
            kept: VecDeque::new(),
            num_evicted: 0,
        }
    }

    /// A prompt arrived. Returns the earlier turns of its conversation.
    pub(super) fn on_arrival(&mut self, session: u64, digests: &[Digest]) -> u8 {
        if let Some(end) = self.sessions.ends.get_mut(session) {
            // What it needs of that is held from now on.
            end.at.1 = u64::MAX;
        }
        self.sessions.turns.on_arrival(session, digests).num_earlier
    }

    /// A request ended, and others may go on from one of `places`.
    pub(super) fn on_end<'a>(
        &mut self,
        class: WorthClass,
        session: u64,
        places: impl Iterator<Item = &'a Digest>,
    ) {
        self.sessions.turns.on_end(class, session, places);
    }

    /// A request of a session has just given its blocks back, of which nobody else is known to need `own`, in
    /// the order of its tokens.
    pub(super) fn on_left<S: Store>(
        &mut self,
        store: &mut S,
        class: WorthClass,
        session: u64,
        own: &[(PoolId, BlockId)],
    ) {
        let now = store.now();
        let before = self.sessions.ends.remove(session).map_or_else(Vec::new, |end| end.left);
        let untouched = before.into_iter().filter(|it| is_as_left(store, it));
        // What the request did not go on from.
        let mut left: Vec<LeftBlock> = untouched.map(|it| LeftBlock { worth: 0.0, ..it }).collect();
        let cached = own.iter().filter(|&&(pool, block)| {
            store.pool(pool).is_hashed(block) && store.pool(pool).ref_count(block) == 0
        });
        left.extend(cached.map(|&(pool, block)| LeftBlock {
            pool,
            block,
            worth: 1.0,
            priority: store.priority(pool, block),
        }));
        let end = SessionEnd { class, at: (0.0, now), priority: now, left };
        self.heed(store, session, end);
    }

    /// Something is said of a session of which no request runs. Returns whether its end is remembered.
    pub(super) fn on_hint<S: Store>(&mut self, store: &mut S, session: u64, hint: Hint) -> bool {
        let Some(mut end) = self.sessions.take_end(session, hint) else { return false };
        end.left.retain(|it| is_as_left(store, it));
        end.at.1 = store.now();
        self.heed(store, session, end);
        true
    }

    /// Do what the hint of a session asks for, and remember its end.
    fn heed<S: Store>(&mut self, store: &mut S, session: u64, mut end: SessionEnd) {
        let lives = self.sessions.turns.lives(end.class);
        if is_over(end.class.hint()) && lives < 1.0 {
            for left in end.left.chunk_by(|one, other| one.pool == other.pool) {
                store.demote_all(left[0].pool, left.iter().map(|it| it.block));
            }
            end.left.iter_mut().for_each(|it| it.priority = 0);
        } else if goes_on(end.class.hint()) && lives > 1.0 {
            let demoted = end.left.iter_mut().rev().filter(|it| it.priority == 0);
            demoted.for_each(|it| use_anew(store, it));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few")]
            let num_left = (2.0 * (lives - 1.0)).ceil() as u32;
            self.kept.push_back(Kept { session, since: end.at.1, num_left });
        }
        self.sessions.ends.insert(session, end);
    }

    /// A step begins. What is kept longer and would be evicted soon is treated as if it had been used now.
    pub(super) fn start_step<S: Store>(&mut self, store: &mut S) {
        if self.kept.is_empty() {
            return;
        }
        let num_evicted = |pool| store.pool(PoolId(pool)).num_evicted;
        let num_evicted = (0..store.num_pools()).map(num_evicted).sum();
        if std::mem::replace(&mut self.num_evicted, num_evicted) == num_evicted {
            return;
        }
        let now = store.now();
        let middle = store.newest_evicted().midpoint(now);
        while let Some(&kept) = self.kept.front().filter(|kept| kept.since <= middle) {
            self.kept.pop_front();
            let end = self.sessions.ends.get_mut(kept.session);
            let is_current =
                |end: &&mut SessionEnd| end.at.1 == kept.since && goes_on(end.class.hint());
            let Some(end) = end.filter(is_current) else { continue };
            let left = end.left.iter_mut().rev().filter(|it| it.worth > 0.0);
            left.for_each(|it| use_anew(store, it));
            end.at.1 = now;
            if kept.num_left > 1 {
                self.kept.push_back(Kept { since: now, num_left: kept.num_left - 1, ..kept });
            }
        }
    }
}

/// Whether a hint says that nobody will need what a session left.
fn is_over(hint: Hint) -> bool {
    matches!(hint, Hint::Done | Hint::Compacted)
}

/// Whether a hint says that somebody will need what a session left.
fn goes_on(hint: Hint) -> bool {
    matches!(hint, Hint::GoingOn | Hint::Paused)
}

/// Whether nobody took or used a block since it was left.
fn is_as_left<S: Store>(store: &S, left: &LeftBlock) -> bool {
    let states = store.pool(left.pool);
    states.is_hashed(left.block)
        && states.ref_count(left.block) == 0
        && store.priority(left.pool, left.block) == left.priority
}

fn use_anew<S: Store>(store: &mut S, left: &mut LeftBlock) {
    if is_as_left(store, left) {
        store.refresh(left.pool, left.block);
        left.priority = store.priority(left.pool, left.block);
    }
}
