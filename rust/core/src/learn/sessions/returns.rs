//! [`Returns`]: which requests ended where. A prompt that continues one is recognized, even when
//! nothing of it is cached any more.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use super::kept_share::ConversationRank;
use super::worth::WorthClass;
use hybrid_blocks_hash::Digest;

/// Buckets, a power of two, by the digest.
const NUM_BUCKETS: usize = 1 << 11;

/// Places that a bucket remembers, the latest first. 24 bytes each.
const NUM_PLACES: usize = 8;

/// A place where the next turn of a conversation may go on.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// [`tag_of`] the digest of all tokens before it, or the number of the session; 0 for none.
    tag: u64,
    /// The number of the request that ended there.
    end: u64,
    class: WorthClass,
    rank: ConversationRank,
    is_used: bool,
    /// Whether a prompt shared it, whatever its session was.
    is_shared: bool,
}

/// The earlier turn that a prompt continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) end: u64,
    pub(super) class: WorthClass,
    pub(super) rank: ConversationRank,
    /// Whether no prompt continued it before.
    pub(super) is_first: bool,
}

/// Record of the requests that a prompt continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// The request of its session, else the one that ended at the last of its digests that is remembered.
    pub(super) earlier: Option<Earlier>,
    /// The number of the request that ended at that digest, and which one it is, for the first prompt that has it.
    pub(super) shared: Option<(u64, usize)>,
}

/// A number for a digest, of all its bytes: those of a test may differ in the last ones only.
pub(super) fn tag_of(digest: &Digest) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(digest.as_bytes());
    hasher.finish().max(1)
}

/// A table of places. A full bucket forgets the earliest. It only guides what is kept: a wrong answer
/// costs a hit, no more.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    buckets: Box<[[Place; NUM_PLACES]]>,
}

impl Default for Returns {
    fn default() -> Self {
        Self { buckets: vec![[Place::default(); NUM_PLACES]; NUM_BUCKETS].into_boxed_slice() }
    }
}

impl Returns {
    fn bucket(&mut self, tag: u64) -> &mut [Place; NUM_PLACES] {
        &mut self.buckets[tag as usize % NUM_BUCKETS]
    }

    /// The request of `class` that is number `end` ended, and the next turn may resume from what `tag` names.
    pub(super) fn insert(
        &mut self,
        tag: u64,
        (class, rank): (WorthClass, ConversationRank),
        end: u64,
    ) {
        let bucket = self.bucket(tag);
        let known = bucket.iter().position(|place| place.tag == tag).unwrap_or(NUM_PLACES - 1);
        bucket[..=known].rotate_right(1);
        bucket[0] = Place { tag, end, class, rank, ..Place::default() };
    }

    /// Sets the class of the request that ended at `tag` and was not resumed.
    pub(super) fn reclass(&mut self, tag: u64, class: WorthClass) {
        let place = self.bucket(tag).iter_mut().find(|place| place.tag == tag);
        if let Some(place) = place.filter(|place| !place.is_used) {
            place.class = class;
        }
    }

    fn find(&mut self, tag: u64) -> Option<&mut Place> {
        self.bucket(tag).iter_mut().find(|place| place.tag == tag)
    }

    /// Looks up which requests a prompt of `digests` and a `session`, 0 for none, continues. The first `num_early` that
    /// ended do not count as shared.
    pub(super) fn take(&mut self, session: u64, digests: &[Digest], num_early: u64) -> Taken {
        let mut tags = digests.iter().map(tag_of).enumerate().rev();
        let last = tags.find(|&(_, tag)| self.find(tag).is_some());
        let mut is_late = |tag| self.find(tag).is_some_and(|place| place.end > num_early);
        let last_late = last.into_iter().chain(tags).find(|&(_, tag)| is_late(tag));
        let shared = last_late.and_then(|(at, tag)| {
            let place = self.find(tag)?;
            let is_first = !std::mem::replace(&mut place.is_shared, true);
            is_first.then_some((place.end, at))
        });
        let named = Some(session).filter(|&it| it != 0 && self.find(it).is_some());
        let earlier = named.or(last.map(|(_, tag)| tag)).and_then(|tag| {
            let place = self.find(tag)?;
            let is_first = !std::mem::replace(&mut place.is_used, true);
            let &mut Place { end, class, rank, .. } = place;
            Some(Earlier { end, class, rank, is_first })
        });
        Taken { earlier, shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::sessions::Hint;

    const DRAW: ConversationRank = ConversationRank::ANY;

    #[test]
    fn the_first_request_that_goes_on_from_a_place_is_told_apart() {
        let digest = |byte: u8| Digest::from([byte; 32]);
        let class = WorthClass::new(3, Hint::None);
        let mut returns = Returns::default();
        returns.insert(tag_of(&digest(2)), (class, DRAW), 9);
        let path = [1, 2, 3].map(digest);
        assert_eq!(returns.take(0, &path[..1], 0).earlier, None);
        let earlier = |is_first| Some(Earlier { end: 9, class, rank: DRAW, is_first });
        assert_eq!(returns.take(0, &path, 0).earlier, earlier(true));
        assert_eq!(returns.take(0, &path, 0).earlier, earlier(false));
    }

    #[test]
    fn the_first_prompt_that_shares_a_place_is_told_which_one_it_is() {
        let path = [1, 2, 3].map(|byte| Digest::from([byte; 32]));
        let class = WorthClass::new(0, Hint::None);
        let mut returns = Returns::default();
        returns.insert(tag_of(&path[0]), (class, DRAW), 4);
        returns.insert(tag_of(&path[1]), (class, DRAW), 5);
        returns.insert(77, (class, DRAW), 6);
        assert_eq!(returns.take(77, &path[2..], 0).shared, None);
        assert_eq!(returns.take(77, &path, 0).shared, Some((5, 1)), "whatever its session is");
        assert_eq!(returns.take(0, &path, 0).shared, None);
    }

    #[test]
    fn a_place_of_an_early_request_is_not_shared_but_one_before_it_may_be() {
        let path = [1, 2, 3].map(|byte| Digest::from([byte; 32]));
        let class = WorthClass::new(0, Hint::None);
        let mut returns = Returns::default();
        returns.insert(tag_of(&path[2]), (class, DRAW), 4);
        returns.insert(tag_of(&path[0]), (class, DRAW), 5);
        let taken = returns.take(0, &path, 4);
        assert_eq!(taken.shared, Some((5, 0)));
        assert_eq!(
            taken.earlier.map(|earlier| earlier.end),
            Some(4),
            "the prompt continues the early request"
        );
        assert_eq!(returns.take(0, &path[2..], 4).shared, None);
    }

    #[test]
    fn what_nobody_went_on_from_can_be_of_another_class() {
        let [first, second] = [Hint::None, Hint::Done].map(|hint| WorthClass::new(1, hint));
        let mut returns = Returns::default();
        returns.insert(77, (first, DRAW), 1);
        returns.reclass(77, second);
        let earlier = |is_first| Some(Earlier { end: 1, class: second, rank: DRAW, is_first });
        assert_eq!(returns.take(77, &[], 0).earlier, earlier(true));
        returns.reclass(77, first);
        assert_eq!(returns.take(77, &[], 0).earlier, earlier(false), "it was used");
    }

    #[test]
    fn a_session_is_recognized_whatever_its_tokens_are() {
        let class = WorthClass::new(1, Hint::Compacted);
        let mut returns = Returns::default();
        returns.insert(77, (class, DRAW), 1);
        assert_eq!(returns.take(78, &[], 0).earlier, None);
        assert_eq!(
            returns.take(77, &[], 0).earlier,
            Some(Earlier { end: 1, class, rank: DRAW, is_first: true })
        );
    }
}
