//! [`KeptShare`]: the conversations that are kept where age alone would keep none until it goes on.

use super::shadow_caches::{Kept, MEMORY, ShadowCaches};

/// Shares of all conversations that are kept, one trial each. Where conversations take turns, and all together are
/// larger than the memory, age drops each just before it goes on.
const SHARES: [f64; 5] = [1.0, 0.75, 0.5, 0.25, 0.125];

/// Where a share is kept, each of its conversations is for this many lives over the share. With one, they were gone
/// too early: a life also counts parts of conversations, such as old windows.
const LIVES: f64 = 4.0;

/// A trial is believed that finds this many times what age finds, and stays believed at the second number. Shadow caches are
/// rough: they know nothing of parts of conversations, nor of prefixes that several share.
const LEAST_GAIN: f64 = 2.0;
const LEAST_GAIN_TO_STAY: f64 = 1.5;

/// Another trial follows that finds this many times what the believed one finds.
const LEAST_GAIN_TO_CHANGE: f64 = 1.25;

/// Age starts as if it had found this many conversations more.
const HEAD_START: f64 = 8.0;

/// The mean length of a conversation is measured on this many first requests.
const NUM_MEASURED: u32 = 8;

/// Parts of a life that the priority in a trial tells apart, and bits below them: ends, of the same part.
const PARTS_A_LIFE: f64 = 65_536.0;
const END_BITS: u32 = 32;

/// Where a conversation stands among all: those of the lowest ranks are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConversationRank(u8);

impl ConversationRank {
    /// Kept, whatever the share is.
    pub const ANY: Self = Self(0);

    fn is_among(self, share: f64) -> bool {
        f64::from(self.0) < share * 256.0
    }
}

/// Which conversations are kept, by shadow caches.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptShare {
    shadows: ShadowCaches<{ SHARES.len() }>,
    num_ranked: u64,
    num_measured: u32,
    /// Tokens by which age is ahead, less and less.
    ahead: f64,
    /// Tokens that the cache itself found, lately.
    found: f64,
    /// The trial that is believed.
    chosen: usize,
}

impl KeptShare {
    /// For a conversation that is new. Any few that follow each other are spread evenly.
    pub(crate) fn rank(&mut self) -> ConversationRank {
        self.num_ranked += 1;
        let golden = self.num_ranked.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ConversationRank((golden >> 56) as u8)
    }

    /// A request continues the one that ended as number `end`, and found `num_tokens` in the cache.
    pub(crate) fn on_return(&mut self, end: u64, num_tokens: u32) {
        self.shadows.on_return(end);
        self.found += f64::from(num_tokens);
    }

    /// The request that is number `end` ended, where the cache holds `capacity`, in the unit of `kept.bytes`.
    pub(crate) fn on_end(&mut self, end: u64, rank: ConversationRank, kept: Kept, capacity: u64) {
        if self.num_measured < NUM_MEASURED {
            self.num_measured += 1;
            self.ahead += HEAD_START / f64::from(NUM_MEASURED) * f64::from(kept.num_tokens);
        }
        self.ahead *= 1.0 - 1.0 / MEMORY;
        self.found *= 1.0 - 1.0 / MEMORY;
        self.shadows.on_end(end, kept, capacity, |trial, lives| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let parts = ((lives + lives_of(SHARES[trial], rank)) * PARTS_A_LIFE) as u64;
            parts << END_BITS | end & ((1 << END_BITS) - 1)
        });
        self.chosen = self.choose();
    }

    /// By age, the cache itself shows what age finds, and at least what its trial does. A share ends by trials alone: the
    /// cache finds nothing by a share that has just begun.
    fn choose(&mut self) -> usize {
        let (by_age, best) = (self.shadows.found(0), self.shadows.best(0.0));
        if self.chosen == 0 {
            let least = LEAST_GAIN * by_age.max(self.found) + self.ahead;
            return if self.shadows.found(best) > least { best } else { 0 };
        }
        let own = self.shadows.found(self.chosen);
        if own < LEAST_GAIN_TO_STAY * by_age {
            0
        } else if self.shadows.found(best) > LEAST_GAIN_TO_CHANGE * own {
            best
        } else {
            self.chosen
        }
    }

    /// For how many lives content of mean worth is kept that a conversation leaves.
    pub(crate) fn lives(&self, rank: ConversationRank) -> f64 {
        lives_of(SHARES[self.chosen], rank)
    }
}

fn lives_of(share: f64, rank: ConversationRank) -> f64 {
    match rank.is_among(share) {
        true if share < 1.0 => LIVES / share,
        true => 1.0,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Kept = Kept { bytes: 1, num_tokens: 1_000 };

    /// Conversations that take turns, for some rounds, in a cache that holds `capacity` of them.
    fn turns_of(num_seats: u64, capacity: u64) -> KeptShare {
        let mut kept_share = KeptShare::default();
        let ranks: Vec<ConversationRank> = (0..num_seats).map(|_| kept_share.rank()).collect();
        for end in 0..num_seats * 8 {
            if end >= num_seats {
                let found = kept_share.lives(ranks[(end % num_seats) as usize]) > 1.0;
                kept_share.on_return(end - num_seats, if found { KEPT.num_tokens } else { 0 });
            }
            kept_share.on_end(end, ranks[(end % num_seats) as usize], KEPT, capacity);
        }
        kept_share
    }

    #[test]
    fn all_are_kept_where_all_fit() {
        assert_eq!(turns_of(20, 20).chosen, 0);
    }

    #[test]
    fn as_many_are_kept_as_fit_where_age_would_keep_none() {
        for (capacity, share) in [(17, 0.75), (11, 0.5), (6, 0.25), (3, 0.125)] {
            let kept_share = turns_of(20, capacity);
            assert!((SHARES[kept_share.chosen] - share).abs() < f64::EPSILON, "{capacity}");
        }
    }

    #[test]
    fn age_is_ahead_by_eight_conversations_less_and_less() {
        let mut kept_share = KeptShare::default();
        let mut ahead = [8, 1_024].map(|num_ends| {
            (0..num_ends).for_each(|end| kept_share.on_end(end, ConversationRank::ANY, KEPT, 100));
            kept_share.ahead / f64::from(KEPT.num_tokens)
        });
        ahead[1] /= ahead[0];
        assert!((ahead[0] - HEAD_START).abs() < 0.1, "{ahead:?}");
        assert!((ahead[1] - (-1.0_f64).exp()).abs() < 0.01, "{ahead:?}");
    }

    #[test]
    fn draws_are_even_among_any_few() {
        let mut kept_share = KeptShare::default();
        for _ in 0..50 {
            let num_low = (0..16).filter(|_| kept_share.rank().is_among(0.5)).count();
            assert!((7..=9).contains(&num_low), "{num_low}");
        }
    }

    #[test]
    fn the_fewer_conversations_are_kept_the_longer_they_are() {
        let mut before = (257, 0.0);
        for share in SHARES {
            let kept = |rank: &u8| lives_of(share, ConversationRank(*rank)) > 0.0;
            let (num, lives) =
                ((0..=255).filter(kept).count(), lives_of(share, ConversationRank::ANY));
            assert!(num < before.0 && lives > before.1, "{share}");
            before = (num, lives);
        }
    }

    #[test]
    fn a_share_stays_though_the_cache_finds_less_than_the_trial_of_age() {
        let mut kept_share = KeptShare::default();
        kept_share.shadows.favour(0, 10_000.0);
        kept_share.shadows.favour(1, 50_000.0);
        for end in 0..8 {
            kept_share.on_end(end, ConversationRank::ANY, KEPT, 100);
            assert_eq!(kept_share.chosen, 1, "end {end}");
        }
    }

    #[test]
    fn age_counts_again_where_its_trial_finds_nearly_as_much() {
        let mut kept_share = turns_of(20, 11);
        assert_ne!(kept_share.chosen, 0);
        kept_share.shadows.favour(0, 0.9 * kept_share.shadows.found(kept_share.chosen));
        kept_share.on_end(1_000, ConversationRank::ANY, KEPT, 11);
        assert_eq!(kept_share.chosen, 0);
    }
}
