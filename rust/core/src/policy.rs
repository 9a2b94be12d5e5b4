//! Eviction policies: what cached content is worth.

/// Which cached content goes first when memory is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Policy {
    /// What was used least recently.
    #[default]
    Lru,
    /// What was used least recently, where content that saves much recomputing for its bytes counts
    /// as used later than it was.
    FlopAware(FlopModel),
    /// What has the least worth, as told by [`crate::Manager::set_priority`].
    Explicit,
}

/// What computing and keeping a sequence of `n` tokens costs.
///
/// FLOPs are `linear · n + quadratic · n²`: `linear` is twice the active parameters, `quadratic`
/// twice the sum over full-attention layers of heads · head size (scores and values, causal).
/// Bytes are `token_bytes · n + state_bytes`. Their ratio grows with `n`, so long sequences are kept
/// longer: their state is spread over more tokens, and attention makes their tokens dearer.
///
/// What is saved counts as often as it is likely to be: content that served `t` turns of a
/// conversation, one after the other, serves the next one with a chance of `(t + 1) / (t + 4)`, the
/// rule of succession after one success among four trials.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopModel {
    /// FLOPs a token, whatever comes before it.
    pub linear: f64,
    /// FLOPs a pair of tokens.
    pub quadratic: f64,
    /// Bytes that attention layers keep a token.
    pub token_bytes: f64,
    /// Bytes of a state.
    pub state_bytes: f64,
    /// Ticks by which content of the highest ratio seems younger.
    pub alpha: f64,
}

impl FlopModel {
    /// FLOPs saved per byte kept, for a sequence of `num_tokens`.
    #[must_use]
    pub fn efficiency(&self, num_tokens: u32) -> f64 {
        let n = f64::from(num_tokens);
        let bytes = self.token_bytes * n + self.state_bytes;
        if bytes > 0.0 { (self.linear * n + self.quadratic * n * n) / bytes } else { 0.0 }
    }

    /// Ticks by which content of a sequence of `num_tokens` that served `num_turns` seems younger,
    /// where `max_tokens` is the longest sequence there can be.
    pub(crate) fn bonus(&self, num_tokens: u32, num_turns: u8, max_tokens: u32) -> u64 {
        let highest = self.efficiency(max_tokens.max(num_tokens));
        let turns = f64::from(num_turns);
        let chance = (turns + 1.0) / (turns + 4.0);
        let ticks = if highest > 0.0 {
            self.alpha * chance * self.efficiency(num_tokens) / highest
        } else {
            0.0
        };
        #[expect(clippy::cast_sign_loss, reason = "the cast of a negative float gives 0")]
        let ticks = ticks as u64;
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: FlopModel = FlopModel {
        linear: 54e9,
        quadratic: 2e5,
        token_bytes: 65_536.0,
        state_bytes: 150e6,
        alpha: 1_000.0,
    };

    #[test]
    fn longer_sequences_save_more_flops_a_byte() {
        let ratios: Vec<f64> = [100, 1_000, 10_000, 100_000].map(|n| MODEL.efficiency(n)).into();
        assert!(ratios.windows(2).all(|pair| pair[0] < pair[1]), "{ratios:?}");
    }

    #[test]
    fn the_bonus_lies_between_nothing_and_alpha() {
        assert_eq!(MODEL.bonus(0, 0, 262_144), 0);
        assert_eq!(MODEL.bonus(262_144, 0, 262_144), 250);
        assert_eq!(MODEL.bonus(262_144, 2, 262_144), 500);
        assert!((985..1_000).contains(&MODEL.bonus(262_144, u8::MAX, 262_144)));
        assert!(MODEL.bonus(1_000, 0, 262_144) < MODEL.bonus(10_000, 0, 262_144));
        assert_eq!(FlopModel { alpha: -1.0, ..MODEL }.bonus(1_000, 0, 2_000), 0);
    }
}
