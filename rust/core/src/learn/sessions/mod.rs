//! [`Sessions`]: what is known of conversations: what clients say of them, how often such ones go on, and
//! what their last requests left behind. Both sets of rules ask it.

mod ends;
mod given;
mod hint;
mod kept_share;
mod returns;
mod shadow_caches;
mod turns;
mod worth;

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::ids::PoolId;
use crate::store::Store;
pub(crate) use ends::{LeftBlock, SessionEnd, SessionEnds};
pub(crate) use given::Given;
pub use hint::Hint;
pub use kept_share::ConversationRank;
pub(crate) use kept_share::KeptShare;
pub use shadow_caches::{Kept, ShadowCaches};
pub use turns::{Turn, Turns};
pub use worth::WorthClass;

/// The number of a session, by its name; 0 stands for none.
pub(crate) fn number_of(session_id: &str) -> u64 {
    let mut hasher = FxHasher::default();
    session_id.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Counts and hints of conversations so far.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) turns: Turns,
    pub(crate) ends: SessionEnds,
    pub(crate) kept_share: KeptShare,
}

impl Sessions {
    /// Nothing seen of the content of a store.
    pub(crate) fn new<S: Store>(store: &S) -> Self {
        let num_ids = |pool| u64::from(store.pool(PoolId(pool)).num_ids());
        Self {
            turns: Turns::default(),
            kept_share: KeptShare::default(),
            ends: SessionEnds::new((0..store.num_pools()).map(num_ids).sum()),
        }
    }

    /// The end of a session. `hint` comes now and counts as if it had come before.
    pub(crate) fn take_end(&mut self, session: u64, hint: Hint) -> Option<SessionEnd> {
        let mut end = self.ends.remove(session)?;
        let class = WorthClass::new(end.class.num_turns(), hint);
        if class != end.class {
            self.turns.reclass(session, end.class, class);
            end.class = class;
        }
        Some(end)
    }
}
