//! [`Costs`]: how long reading from tiers and computing tokens are expected to take.

use super::tier::MAX_TIERS;

/// The expected time of a read from a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadCost {
    /// Seconds that do not depend on the size: the tier's latency, and what is read before.
    pub latency: f64,
    /// Seconds a byte.
    pub per_byte: f64,
}

/// The costs that a look-up weighs. Tiers without a measured cost count as if a read took no time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs<'a> {
    /// By tier; missing ones are not measured.
    pub reads: &'a [Option<ReadCost>],
    /// Seconds that computing one token of a prompt takes. `None` if it is not known: then all that can be
    /// read is read.
    pub per_token: Option<f64>,
}

/// Bytes to read from each tier.
pub(super) type Bytes = [u64; MAX_TIERS];

impl Costs<'_> {
    fn of(&self, tier: usize) -> Option<ReadCost> {
        self.reads.get(tier).copied().flatten()
    }

    /// Nanoseconds until `bytes` have been read from a tier.
    fn read_time(&self, tier: usize, bytes: u64) -> u64 {
        let cost = self.of(tier).filter(|_| bytes > 0).unwrap_or_default();
        nanos(cost.latency + cost.per_byte * bytes as f64)
    }

    /// Nanoseconds until reads from all tiers, which run side by side, have ended.
    pub(super) fn time(&self, bytes: &Bytes) -> u64 {
        (0..MAX_TIERS).map(|tier| self.read_time(tier, bytes[tier])).max().unwrap_or(0)
    }

    /// Nanoseconds until `num_tokens` have been computed.
    pub(super) fn computing(&self, num_tokens: u32) -> u64 {
        nanos(self.per_token.unwrap_or(0.0) * f64::from(num_tokens))
    }

    /// Tokens that are computed in some nanoseconds, rather fewer than more.
    pub(super) fn tokens_in(&self, nanos: u64) -> u32 {
        // Times were cut to whole nanoseconds.
        let seconds = nanos.saturating_sub(2) as f64 * 1e-9;
        whole(seconds / self.per_token.unwrap_or(0.0)).try_into().unwrap_or(u32::MAX)
    }

    /// Tiers in the order in which they are asked: the one first that would read `bytes` soonest. The given
    /// order stands between equals, and while one of them is not measured.
    pub(super) fn order(&self, num_tiers: usize, bytes: u64) -> [u8; MAX_TIERS] {
        let mut order = [0, 1, 2, 3, 4, 5, 6, 7];
        let asked = &mut order[..num_tiers];
        if asked.iter().all(|&tier| self.of(tier.into()).is_some()) {
            asked.sort_by_key(|&tier| self.read_time(tier.into(), bytes.max(1)));
        }
        order
    }
}

fn nanos(seconds: f64) -> u64 {
    whole(seconds * 1e9)
}

#[expect(
    clippy::cast_sign_loss,
    reason = "what is below 0 becomes 0, and what is too large the most"
)]
fn whole(number: f64) -> u64 {
    number as u64
}
