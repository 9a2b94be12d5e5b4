//! [`Returns`]: which requests ended where. A prompt that continues one is recognized, even when
//! nothing of it is cached any more.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use super::residents::Draw;
use super::worth::WorthClass;
use crate::digest::Digest;

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
    draw: Draw,
    is_used: bool,
}

/// The earlier turn that a prompt continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) end: u64,
    pub(super) class: WorthClass,
    pub(super) draw: Draw,
    /// Whether no prompt continued it before.
    pub(super) is_first: bool,
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
    pub(super) fn insert(&mut self, tag: u64, (class, draw): (WorthClass, Draw), end: u64) {
        let bucket = self.bucket(tag);
        let known = bucket.iter().position(|place| place.tag == tag).unwrap_or(NUM_PLACES - 1);
        bucket[..=known].rotate_right(1);
        bucket[0] = Place { tag, end, class, draw, is_used: false };
    }

    /// What ended at `tag`, and was not gone on from, is of another class.
    pub(super) fn reclass(&mut self, tag: u64, class: WorthClass) {
        let place = self.bucket(tag).iter_mut().find(|place| place.tag == tag);
        if let Some(place) = place.filter(|place| !place.is_used) {
            place.class = class;
        }
    }

    /// The request that a prompt continues: that of its `session`, else of the last of `digests` that is
    /// remembered.
    pub(super) fn take(&mut self, session: u64, digests: &[Digest]) -> Option<Earlier> {
        let tags = [session].into_iter().chain(digests.iter().rev().map(tag_of));
        for tag in tags.filter(|&tag| tag != 0) {
            if let Some(place) = self.bucket(tag).iter_mut().find(|place| place.tag == tag) {
                let is_first = !std::mem::replace(&mut place.is_used, true);
                let &mut Place { end, class, draw, .. } = place;
                return Some(Earlier { end, class, draw, is_first });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::sessions::Hint;

    const DRAW: Draw = Draw::ANY;

    #[test]
    fn the_first_request_that_goes_on_from_a_place_is_told_apart() {
        let digest = |byte: u8| Digest::from([byte; 32]);
        let class = WorthClass::new(3, Hint::None);
        let mut returns = Returns::default();
        returns.insert(tag_of(&digest(2)), (class, DRAW), 9);
        let path = [1, 2, 3].map(digest);
        assert_eq!(returns.take(0, &path[..1]), None);
        let earlier = |is_first| Some(Earlier { end: 9, class, draw: DRAW, is_first });
        assert_eq!(returns.take(0, &path), earlier(true));
        assert_eq!(returns.take(0, &path), earlier(false));
    }

    #[test]
    fn what_nobody_went_on_from_can_be_of_another_class() {
        let [first, second] = [Hint::None, Hint::Done].map(|hint| WorthClass::new(1, hint));
        let mut returns = Returns::default();
        returns.insert(77, (first, DRAW), 1);
        returns.reclass(77, second);
        let earlier = |is_first| Some(Earlier { end: 1, class: second, draw: DRAW, is_first });
        assert_eq!(returns.take(77, &[]), earlier(true));
        returns.reclass(77, first);
        assert_eq!(returns.take(77, &[]), earlier(false), "it was used");
    }

    #[test]
    fn a_session_is_recognized_whatever_its_tokens_are() {
        let class = WorthClass::new(1, Hint::Compacted);
        let mut returns = Returns::default();
        returns.insert(77, (class, DRAW), 1);
        assert_eq!(returns.take(78, &[]), None);
        assert_eq!(
            returns.take(77, &[]),
            Some(Earlier { end: 1, class, draw: DRAW, is_first: true })
        );
    }
}
