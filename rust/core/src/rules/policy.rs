//! Eviction policies: which cached content goes first.

use crate::rules::keeper::Chances;

/// Which cached content goes first when memory is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Policy {
    /// What was used least recently; checkpoints of little worth, and attention that only they need, sooner.
    #[default]
    Lru,
    /// The same, where content that is likely to be gone on from is kept longer.
    FlopAware(FlopModel),
    /// What has the lowest priority, as told by [`crate::BlockManager::set_priorities`].
    Explicit,
}

/// What computing a sequence of `n` tokens costs.
///
/// FLOPs are `linear · n + quadratic · n²`: `linear` is twice the active parameters, `quadratic`
/// twice the sum over full-attention layers of heads · head size (scores and values, causal).
/// What a checkpoint is worth counts the FLOPs of the tokens that it saves. How long content is kept does not
/// depend on its length, as its hits per byte do not.
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
    /// How much the chance to be gone on from counts: content is kept for `1 + alpha * (c - 1)` times as many lives,
    /// at least 0, where `c` is its chance over the mean chance. A life is the time in which as much is evicted as is cached; 0
    /// is eviction by age.
    pub alpha: f64,
}

impl Policy {
    /// How much it counts how likely content is gone on from.
    pub(crate) fn chances(self) -> Option<Chances> {
        match self {
            Self::FlopAware(model) => Some(Chances::All(model.alpha)),
            Self::Lru | Self::Explicit => None,
        }
    }

    /// FLOPs a pair of tokens over FLOPs a token, where it counts them.
    pub(crate) fn quadratic(self) -> f64 {
        match self {
            Self::FlopAware(model) if model.linear > 0.0 => model.quadratic / model.linear,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_tokens_cost_nothing_where_no_flops_are_counted() {
        let quadratic = |linear| {
            Policy::FlopAware(FlopModel { linear, quadratic: 3.0, alpha: 0.0 }).quadratic()
        };
        assert_eq!((quadratic(2.0), quadratic(0.0), Policy::Lru.quadratic()), (1.5, 0.0, 0.0));
    }
}
