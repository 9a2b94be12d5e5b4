//! [`Again`]: how likely prompts resume once more where earlier ones resumed.

/// Places that prompts left lately, and how many of them were left again.
#[derive(Clone, Copy, Debug)]
pub struct Again {
    left: [f64; Self::MOST as usize],
    again: [f64; Self::MOST as usize],
}

/// Places after which older ones count half.
const MEMORY: f64 = 64.0;

/// Most uses that are reckoned with.
const MOST_USES: f64 = 16.0;

impl Default for Again {
    /// Prior, as if of four places: a quarter is left a second time, and half of those once more.
    fn default() -> Self {
        Self { left: [4.0; Self::MOST as usize], again: [1.0, 2.0] }
    }
}

impl Again {
    /// Prompts after which a place counts as shared by many.
    pub const MOST: u8 = 2;

    /// A prompt leaves where `num_before` did.
    pub(super) fn add(&mut self, num_before: u8) {
        let before = usize::from(num_before.min(Self::MOST));
        if let Some(at) = before.checked_sub(1) {
            self.again[at] += 1.0;
        }
        let now = before.min(Self::MOST as usize - 1);
        self.left[now] += 1.0;
        if self.left[now] > MEMORY {
            self.left[now] /= 2.0;
            self.again[now] /= 2.0;
        }
    }

    /// The chance that a place that `num_uses` prompts went on from is gone on from once more.
    pub(super) fn chance(&self, num_uses: u8) -> f64 {
        let at = usize::from(num_uses.clamp(1, Self::MOST)) - 1;
        (self.again[at] / self.left[at]).min(1.0)
    }

    /// How often that is likely to be so still: each time, the next one comes with the chance of places
    /// that several went on from.
    pub(super) fn uses(&self, num_uses: u8) -> f64 {
        self.chance(num_uses) / (1.0 - self.chance(Self::MOST)).max(1.0 / MOST_USES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_anything_was_seen_a_quarter_is_left_again_and_half_of_those_once_more() {
        let again = Again::default();
        for (num_uses, chance, uses) in
            [(0, 0.25, 0.5), (1, 0.25, 0.5), (2, 0.5, 1.0), (9, 0.5, 1.0)]
        {
            assert!((again.chance(num_uses) - chance).abs() < 1e-9, "{num_uses} uses");
            assert!((again.uses(num_uses) - uses).abs() < 1e-9, "{num_uses} uses");
        }
    }

    #[test]
    fn what_was_seen_long_ago_counts_little() {
        let mut again = Again::default();
        (0..1_000).for_each(|_| again.add(0));
        assert!(again.chance(1) < 0.01);
        for _ in 0..200 {
            again.add(0);
            again.add(1);
        }
        assert!(again.chance(1) > 0.8, "{}", again.chance(1));
    }
}
