//! [`Outlook`]: what the checkpoints of one prompt are likely to save.

/// Checkpoints of a prompt, the shortest first.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The chance that the prompt is left there or behind, less that of being gone on from behind its
    /// end; of each checkpoint, and of what lies behind all.
    pub(super) reached: Vec<f64>,
    /// The length at which each stands.
    pub(super) tokens: Vec<f64>,
    /// The chance of each to be used again by those who used it.
    pub(super) again: Vec<f64>,
    /// Where checkpoints are windows: their tokens, and the length at which each ends. Windows overlap.
    pub(super) windows: Option<(u32, Vec<u32>)>,
}

impl Outlook {
    /// Tokens that prompts are likely to save which resume from `start` or after it.
    pub fn saved(&self, start: usize) -> f64 {
        let base = start.checked_sub(1).map_or(0.0, |before| self.tokens[before]);
        let shares = self.reached[start..].windows(2).map(|pair| (pair[0] - pair[1]).max(0.0));
        shares.zip(&self.tokens[start..]).map(|(share, tokens)| share * (tokens - base)).sum()
    }

    /// The same checkpoints as windows of `window` tokens before each of `lengths`.
    #[must_use]
    pub fn of_windows(self, window: u32, lengths: &[u32]) -> Self {
        Self { windows: Some((window.max(1), lengths.to_vec())), ..self }
    }

    /// The share of its bytes that a checkpoint of those that are `left` has for itself.
    fn own_share(&self, left: &[usize], at: usize) -> f64 {
        let Some((window, lengths)) = &self.windows else { return 1.0 };
        let length = lengths[left[at]];
        let start = length.saturating_sub(*window);
        let before = at.checked_sub(1).map_or(0, |before| lengths[left[before]]);
        let behind = left.get(at + 1).map_or(length, |&it| lengths[it].saturating_sub(*window));
        let own = behind.min(length).saturating_sub(before.max(start));
        // No less than a block, as blocks are kept whole.
        f64::from(own.max(16)) / f64::from((*window).max(16))
    }

    /// Tokens that each is likely to save for the bytes of a whole one. The one that the others replace best counts what it saves
    /// beside all of them; the next one, what it saves beside the rest, and so on: who wants to do
    /// without some does without the least of them, in this order.
    pub fn values(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.tokens.len()];
        let mut left: Vec<usize> = (0..self.tokens.len()).collect();
        let mut least_so_far = 0.0f64;
        while !left.is_empty() {
            let saved = |at: usize| {
                let own = left[at];
                let behind = left.get(at + 1).copied().unwrap_or(self.tokens.len());
                let shorter = at.checked_sub(1).map_or(0.0, |before| self.tokens[left[before]]);
                let share = self.reached[own] - self.reached[behind];
                share.max(self.again[own]) * (self.tokens[own] - shorter)
                    / self.own_share(&left, at)
            };
            let (at, least) = (0..left.len())
                .map(|at| (at, saved(at)))
                .fold((0, f64::INFINITY), |least, new| if new.1 < least.1 { new } else { least });
            least_so_far = least_so_far.max(least);
            values[left.remove(at)] = least_so_far;
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_that_replace_each_other_one_is_worth_all_that_they_save() {
        let outlook = Outlook {
            reached: vec![0.0, 0.0, -0.9],
            tokens: vec![320.0, 384.0],
            again: vec![0.0; 2],
            windows: None,
        };
        assert_eq!(outlook.values(), [0.0, 0.9 * 384.0]);
        assert!((outlook.saved(0) - 0.9 * 384.0).abs() < 1e-9);
        assert!((outlook.saved(1) - 0.9 * 64.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_used_is_worth_as_much_as_it_is_likely_to_be_used_again() {
        let tokens = vec![1_000.0, 1_100.0];
        let again = vec![0.5, 0.0];
        let outlook = Outlook { reached: vec![0.0, 0.0, -0.5], tokens, again, windows: None };
        assert_eq!(outlook.values(), [500.0, 50.0]);
    }

    #[test]
    fn a_window_that_overlaps_another_costs_only_what_it_has_for_itself() {
        let outlook = Outlook {
            reached: vec![0.5, 0.5, 0.5, 0.0],
            tokens: vec![1_000.0, 4_080.0, 4_096.0],
            again: vec![0.0; 3],
            windows: None,
        };
        let values = outlook.clone().of_windows(1_024, &[1_000, 4_080, 4_096]).values();
        // The last one alone needs one block of 64 beside the window of the one before.
        assert_eq!(values, [0.0, 0.0, 0.5 * 4_096.0]);
        let left = outlook.of_windows(1_024, &[1_000, 4_080, 4_096]);
        assert!((left.own_share(&[0, 1, 2], 2) - 1.0 / 64.0).abs() < 1e-9);
        assert!((left.own_share(&[0, 2], 1) - 1.0).abs() < 1e-9);
    }
}
