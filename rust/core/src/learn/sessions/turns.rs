//! [`Turns`]: which requests are turns of one conversation, and how likely it goes on.

use super::kept_share::ConversationRank;
use super::returns::{Earlier, Returns, Taken, tag_of};
use super::worth::{Worth, WorthClass};
use hybrid_blocks_hash::Digest;

/// Turns of conversations seen so far.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    worth: Worth,
    returns: Returns,
    num_ended: u64,
    /// First ones among them, which do not count as shared.
    num_early: u64,
}

/// Conversation that a prompt is a turn of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Earlier turns of its conversation, as far as they are remembered.
    pub num_earlier: u8,
    /// The number of the request that it is the first to continue.
    pub after: Option<u64>,
    /// The rank that [`Turns::on_end`] noted for its conversation.
    pub rank: Option<ConversationRank>,
    /// The number of a request that is over, and the last of the prompt's digests that was a place of it. `None` if
    /// another prompt shared that place before.
    pub shared: Option<(u64, usize)>,
}

impl Turns {
    /// A request of `class` and a `session`, 0 for none, ended, of a conversation with a `draw`. A request that resumes from one of
    /// `places`, the digests of all tokens before each, is the next turn of its conversation.
    /// Returns the request's number.
    pub fn on_end<'a>(
        &mut self,
        class: WorthClass,
        session: u64,
        rank: ConversationRank,
        places: impl Iterator<Item = &'a Digest>,
    ) -> u64 {
        self.worth.on_end(class);
        self.num_ended += 1;
        let end = self.num_ended;
        if session > 0 {
            self.returns.insert(session, (class, rank), end);
        }
        places.for_each(|digest| self.returns.insert(tag_of(digest), (class, rank), end));
        end
    }

    /// A prompt of `digests` and a `session`, 0 for none, arrived.
    pub fn on_arrival(&mut self, session: u64, digests: &[Digest]) -> Turn {
        let Taken { earlier, shared } = self.returns.take(session, digests, self.num_early);
        match earlier {
            Some(Earlier { end, class, rank, is_first: true }) => {
                self.worth.on_continued(class);
                let num_earlier = class.num_turns() + 1;
                Turn { num_earlier, after: Some(end), rank: Some(rank), shared }
            }
            _ => Turn { shared, ..Turn::default() },
        }
    }

    /// The number of the last request that ended; the first one is 1.
    pub(crate) fn num_ended(&self) -> u64 {
        self.num_ended
    }

    /// Requests that ended so far do not count as shared. They are noted only where clients name sessions, and names
    /// alone must change nothing.
    pub(crate) fn share_none_so_far(&mut self) {
        self.num_early = self.num_ended;
    }

    /// The chance that what a request of `class` leaves is gone on from, over the mean chance.
    pub fn relative_chance(&self, class: WorthClass) -> f64 {
        self.worth.relative_chance(class)
    }

    /// Forgets how often requests were continued.
    pub(crate) fn forget_chances(&mut self) {
        self.worth = Worth::default();
    }

    /// The last request of a session, which no request continued, is of another class.
    pub(super) fn reclass(&mut self, session: u64, from: WorthClass, to: WorthClass) {
        self.worth.on_reclassed(from, to);
        self.returns.reclass(session, to);
    }
}
