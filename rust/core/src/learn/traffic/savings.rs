//! [`Savings`]: what requests left behind lately, and what that is likely to save.

/// Content that one request left behind, or all lately. Counts are tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Savings {
    /// Likely to be saved by what is kept.
    pub(super) saved: f64,
    /// Whose attention takes as many bytes.
    pub(super) bytes: f64,
    /// Likely to be saved by one checkpoint in its best place, if it is kept.
    pub(super) saved_by_one: f64,
    /// Found in the cache.
    pub(super) found: f64,
    /// Tokens of prompts.
    pub(super) prompt: f64,
    /// Tokens that were generated.
    pub(super) generated: f64,
    /// Held in the end.
    pub(super) held: f64,
    /// Tokens of earlier turns that were recognized but not found.
    pub(super) missed: f64,
    /// Number of requests.
    pub(super) num_requests: f64,
}

/// Prompts find little if they find no more than this share.
/// Then their earlier turns, recognized without their content, say better where they continue.
const LOW_HIT_SHARE: f64 = 1.0 / 12.0;

/// Prompts find most of what they repeat if that is more than this many times what they miss of earlier turns.
const DOMINANCE: f64 = 3.0;

impl Savings {
    /// Requests after which what older ones left behind counts half.
    const MEMORY: f64 = 64.0;

    /// One request more.
    pub(super) fn add(&mut self, one: Self) {
        let mut one = one;
        for (all, one) in self.fields().into_iter().zip(one.fields()) {
            *all += *one;
        }
        if self.num_requests > Self::MEMORY {
            self.fields().into_iter().for_each(|it| *it /= 2.0);
        }
    }

    fn fields(&mut self) -> [&mut f64; 9] {
        let Self {
            saved,
            bytes,
            saved_by_one,
            found,
            prompt,
            generated,
            held,
            missed,
            num_requests,
        } = self;
        [saved, bytes, saved_by_one, found, prompt, generated, held, missed, num_requests]
    }

    /// Tokens that the bytes of one token's attention are likely to save.
    pub(super) fn mean(&self) -> f64 {
        self.saved / self.bytes.max(1.0)
    }

    /// Whether prompts find so little that what they find says little of where they go on.
    pub(super) fn finds_little(&self) -> bool {
        self.found < LOW_HIT_SHARE * self.prompt
    }

    /// Whether prompts find most of what they repeat.
    pub(super) fn finds_most(&self) -> bool {
        self.found > DOMINANCE * self.missed
    }

    /// Whether prompts find more of what they repeat than they miss of earlier turns.
    pub(super) fn finds_more(&self) -> bool {
        self.found > self.missed
    }

    /// The share of what earlier turns computed that prompts do not find; all of it before they find any.
    pub(super) fn lost(&self) -> f64 {
        1.0 - self.found / (self.found + self.missed).max(1.0)
    }

    /// Whether requests save more time by a checkpoint that lasts than they lose by its room.
    /// `num_running` run at once, a checkpoint takes the bytes of `state_tokens` tokens, and a step the time of
    /// `step_tokens`.
    ///
    /// With that room beside each, fewer run at once, and all take longer by as much. What a checkpoint saves
    /// counts against a prompt and the request's share of the steps that generate.
    pub(super) fn is_worth_room(
        &self,
        num_running: f64,
        state_tokens: f64,
        step_tokens: f64,
    ) -> bool {
        let time = self.prompt + self.generated * step_tokens / num_running;
        let states = state_tokens * self.num_requests;
        self.saved_by_one.max(self.found) * (self.held + 2.0 * states) > time * states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_left_behind_counts_half_after_64_more() {
        let one = Savings { saved: 1.0, bytes: 1.0, num_requests: 1.0, ..Savings::default() };
        let mut kept = Savings::default();
        (0..65).for_each(|_| kept.add(one));
        assert_eq!((kept.num_requests, kept.saved, kept.bytes), (32.5, 32.5, 32.5));
        (0..31).for_each(|_| kept.add(Savings { saved: 0.0, ..one }));
        assert_eq!((kept.saved, kept.bytes), (32.5, 63.5));
        assert!((kept.mean() - 32.5 / 63.5).abs() < 1e-9);
    }

    #[test]
    fn all_is_lost_before_anything_is_found() {
        let lost = |found, missed| Savings { found, missed, ..Savings::default() }.lost();
        for (found, missed, share) in
            [(0.0, 0.0, 1.0), (0.0, 9.0, 1.0), (6.0, 2.0, 0.25), (6.0, 0.0, 0.0)]
        {
            assert!((lost(found, missed) - share).abs() < 1e-9, "{found} {missed}");
        }
    }

    #[test]
    fn a_checkpoint_is_worth_room_where_it_saves_more_than_fewer_at_once_cost() {
        let chat = Savings {
            saved_by_one: 4_000.0,
            prompt: 8_000.0,
            generated: 200.0,
            held: 8_200.0,
            num_requests: 1.0,
            ..Savings::default()
        };
        assert!(!Savings::default().is_worth_room(8.0, 2_400.0, 149.0), "nothing is known");
        assert!(chat.is_worth_room(8.0, 2_400.0, 149.0));
        let mut many = Savings::default();
        (0..50).for_each(|_| many.add(chat));
        assert!(many.is_worth_room(8.0, 2_400.0, 149.0), "50 requests are as one");
        assert!(!many.is_worth_room(8.0, 24_000.0, 149.0));
        assert!(!chat.is_worth_room(8.0, 24_000.0, 149.0));
        assert!(!Savings { saved_by_one: 100.0, ..chat }.is_worth_room(8.0, 2_400.0, 149.0));
        assert!(
            !Savings { generated: 20_000.0, held: 28_000.0, ..chat }
                .is_worth_room(8.0, 24_000.0, 149.0)
        );
    }
}
