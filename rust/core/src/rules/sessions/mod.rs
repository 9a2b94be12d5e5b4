//! [`Sessions`]: what is known of conversations: what clients say of them, how often such ones go on, and
//! what their last requests left behind. Both sets of rules ask it.

mod ends;
mod hint;
mod returns;
mod worth;

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::digest::Digest;
use crate::ids::PoolId;
use crate::store::Store;
pub(crate) use ends::{LeftBlock, SessionEnd, SessionEnds};
pub use hint::Hint;
use returns::{Returns, tag_of};
pub(crate) use worth::{Worth, WorthClass};

/// The number of a session, by its name; 0 stands for none.
pub(crate) fn number_of(session_id: &str) -> u64 {
    let mut hasher = FxHasher::default();
    session_id.hash(&mut hasher);
    hasher.finish().max(1)
}

/// What was seen and said of conversations so far.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) worth: Worth,
    returns: Returns,
    pub(crate) ends: SessionEnds,
}

impl Sessions {
    /// Nothing seen of the content of a store.
    pub(crate) fn new<S: Store>(store: &S) -> Self {
        let num_ids = |pool| u64::from(store.pool(PoolId(pool)).num_ids());
        Self {
            worth: Worth::default(),
            returns: Returns::default(),
            ends: SessionEnds::new((0..store.num_pools()).map(num_ids).sum()),
        }
    }

    /// A request of `class` and a `session`, 0 for none, ended. Whoever goes on from one of `places`, the
    /// digests of all tokens before each, is the next turn of its conversation.
    pub(crate) fn on_end<'a>(
        &mut self,
        class: WorthClass,
        session: u64,
        places: impl Iterator<Item = &'a Digest>,
    ) {
        self.worth.on_end(class);
        if session > 0 {
            self.returns.insert(session, class);
        }
        places.for_each(|digest| self.returns.insert(tag_of(digest), class));
    }

    /// A prompt of `digests` and a `session`, 0 for none, arrived. Returns the earlier turns of its
    /// conversation, as far as they are remembered.
    pub(crate) fn on_arrival(&mut self, session: u64, digests: &[Digest]) -> u8 {
        match self.returns.take(session, digests) {
            Some((class, true)) => {
                self.worth.on_continued(class);
                class.num_turns() + 1
            }
            _ => 0,
        }
    }

    /// The end of a session, of which `hint` is said now, as if it had been said before.
    pub(crate) fn take_end(&mut self, session: u64, hint: Hint) -> Option<SessionEnd> {
        let mut end = self.ends.remove(session)?;
        let class = WorthClass::new(end.class.num_turns(), hint);
        if class != end.class {
            self.worth.on_reclassed(end.class, class);
            self.returns.reclass(session, class);
            end.class = class;
        }
        Some(end)
    }
}
