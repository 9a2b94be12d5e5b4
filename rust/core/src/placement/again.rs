//! [`Again`]: how likely a place that prompts went on from is gone on from once more.

/// Places that so many prompts left lately, and how many of them were left again.
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
    /// What is believed before anything was seen, as if of four places: a quarter is left a second time,
    /// and half of those once more.
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
