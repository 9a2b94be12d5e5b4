//! Eviction policies: which cached content goes first.

/// Which cached content goes first when memory is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Policy {
    /// What was used least recently.
    #[default]
    Lru,
    /// What was used least recently, where content that saves much recomputing for its bytes counts
    /// as used later than it was.
    FlopAware(FlopModel),
    /// What has the lowest priority, as told by [`crate::BlockManager::set_priorities`].
    Explicit,
}

/// What computing and keeping a sequence of `n` tokens costs.
///
/// FLOPs are `linear · n + quadratic · n²`: `linear` is twice the active parameters, `quadratic`
/// twice the sum over full-attention layers of heads · head size (scores and values, causal).
/// Bytes are `token_bytes · n + state_bytes`. What a checkpoint is worth counts the FLOPs of the tokens
/// that it saves. How long content is kept does not depend on its length, as its hits per byte do not.
///
/// Content is kept the longer the likelier it is gone on from: how many requests were is learned by the
/// turn of their conversation and by what was said of it. Before that, content of turn `t`, counted from
/// 0, has a chance of `(t + 1) / (t + 4)`, the rule of succession after one success among four trials.
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
    /// Lives by which content of the mean chance and the mean ratio seems younger, where a life is
    /// the time in which as much is evicted as is cached; 0 is eviction by age.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: FlopModel = FlopModel {
        linear: 54e9,
        quadratic: 2e5,
        token_bytes: 65_536.0,
        state_bytes: 150e6,
        alpha: 1.0,
    };

    #[test]
    fn efficiency_is_the_flops_of_a_sequence_over_its_bytes() {
        // 1,000 tokens: 5.4e13 linear and 2e11 quadratic FLOPs, 65,536,000 and 150,000,000 bytes.
        let efficiency = MODEL.efficiency(1_000);
        assert!((efficiency - 5.42e13 / 215_536_000.0).abs() < 1e-6 * efficiency, "{efficiency}");
    }

    #[test]
    fn longer_sequences_save_more_flops_a_byte() {
        let ratios: Vec<f64> = [100, 1_000, 10_000, 100_000].map(|n| MODEL.efficiency(n)).into();
        assert!(ratios.windows(2).all(|pair| pair[0] < pair[1]), "{ratios:?}");
    }
}
