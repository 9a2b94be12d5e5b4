//! [`Returns`]: which requests ended where, so that who goes on from one is recognized, even when
//! nothing of it is cached any more.

use super::worth::WorthClass;
use crate::digest::Digest;

/// Places that are remembered, a power of two. 16 bytes each.
const NUM_PLACES: usize = 1 << 14;

/// A place where the next turn of a conversation may go on.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The first eight bytes of the digest of all tokens before it, or the number of the session; 0
    /// for none.
    tag: u64,
    class: WorthClass,
    is_used: bool,
}

/// A table of places; a later one may overwrite an earlier one, so it forgets. It only guides what is
/// kept: a wrong answer costs a hit, no more.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    places: Box<[Place]>,
}

impl Default for Returns {
    fn default() -> Self {
        Self { places: vec![Place::default(); NUM_PLACES].into_boxed_slice() }
    }
}

impl Returns {
    fn slot(tag: u64) -> usize {
        tag as usize % NUM_PLACES
    }

    /// A request of `class` ended, and the next turn may go on from what `tag` names.
    pub(super) fn insert(&mut self, tag: u64, class: WorthClass) {
        self.places[Self::slot(tag)] = Place { tag, class, is_used: false };
    }

    /// The class of the request that a prompt goes on from, and whether it is the first to do so: that
    /// of its `session`, else the last of `digests` that is remembered.
    pub(super) fn take(&mut self, session: u64, digests: &[Digest]) -> Option<(WorthClass, bool)> {
        let mut tags = [session].into_iter().chain(digests.iter().rev().map(Digest::prefix));
        let tag = tags.find(|&tag| tag != 0 && self.places[Self::slot(tag)].tag == tag)?;
        let place = &mut self.places[Self::slot(tag)];
        let is_first = !std::mem::replace(&mut place.is_used, true);
        Some((place.class, is_first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::natural::Hint;

    #[test]
    fn the_first_request_that_goes_on_from_a_place_is_told_apart() {
        let digest = |byte: u8| Digest::from([byte; 32]);
        let class = WorthClass::new(3, Hint::None);
        let mut returns = Returns::default();
        returns.insert(digest(2).prefix(), class);
        let path = [1, 2, 3].map(digest);
        assert_eq!(returns.take(0, &path[..1]), None);
        assert_eq!(returns.take(0, &path), Some((class, true)));
        assert_eq!(returns.take(0, &path), Some((class, false)));
    }

    #[test]
    fn a_session_is_recognized_whatever_its_tokens_are() {
        let class = WorthClass::new(1, Hint::Compacted);
        let mut returns = Returns::default();
        returns.insert(77, class);
        assert_eq!(returns.take(78, &[]), None);
        assert_eq!(returns.take(77, &[]), Some((class, true)));
    }
}
