//! The places that save most tokens for their cost.

use super::TokenCosts;
use super::departures::Rates;
use super::distances::{NUM_BUCKETS, edge};

/// Most checkpoints of one prompt.
pub const MAX_PLACES: usize = 8;

/// Lengths, ascending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    of: [u32; MAX_PLACES],
    len: u8,
}

impl Lengths {
    /// The lengths.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.of[..usize::from(self.len)]
    }

    /// Adds a length in its place, unless it is there or [`MAX_PLACES`] are.
    pub fn insert(&mut self, length: u32) {
        let len = usize::from(self.len);
        let at = self.as_slice().partition_point(|&other| other < length);
        if len < MAX_PLACES && self.as_slice().get(at) != Some(&length) {
            self.of.copy_within(at..len, at + 1);
            self.of[at] = length;
            self.len += 1;
        }
    }
}

impl From<&[u32]> for Lengths {
    /// In ascending order, each once, the first [`MAX_PLACES`] of them.
    fn from(lengths: &[u32]) -> Self {
        let mut all = Self::default();
        for &length in lengths {
            all.insert(length);
        }
        all
    }
}

impl<const N: usize> From<[u32; N]> for Lengths {
    fn from(lengths: [u32; N]) -> Self {
        Self::from(&lengths[..])
    }
}

/// What places are chosen for.
#[derive(Debug)]
pub(super) struct Demand<'a> {
    pub(super) rates: &'a Rates,
    /// Whether who goes on into the answer has to go back to the prompt.
    pub(super) serves_answers: bool,
    pub(super) alignment: u32,
    pub(super) costs: TokenCosts,
    /// Tokens that a checkpoint has to save.
    pub(super) cost: f64,
}

/// Adds up to `most` places to `lengths` for a prompt of `num_tokens` tokens that goes on from
/// `start`: always the one that saves most tokens beside those chosen before, until none is worth its
/// cost. A place at distance `d` serves who leaves at `d` or nearer to the end, and who leaves at
/// a greater distance has to go back to the next place, in the end to `start`.
pub(super) fn choose(
    demand: &Demand<'_>,
    start: u32,
    num_tokens: u32,
    most: usize,
    lengths: &mut Lengths,
) {
    let end = num_tokens / demand.alignment * demand.alignment;
    // Departures no farther than each bucket's edge, and the place that serves them.
    let mut served = [0.0; NUM_BUCKETS];
    let mut places = [0; NUM_BUCKETS];
    let mut num_candidates = 0;
    let mut sum = if demand.serves_answers { demand.rates.into_answer } else { 0.0 };
    for bucket in 0..NUM_BUCKETS {
        let distance = edge(bucket) / demand.alignment * demand.alignment;
        if distance >= end.saturating_sub(start) {
            break;
        }
        sum += demand.rates.by_distance[bucket];
        let place = end - distance;
        if num_candidates > 0 && places[num_candidates - 1] == place {
            served[num_candidates - 1] = sum;
        } else {
            (places[num_candidates], served[num_candidates]) = (place, sum);
            num_candidates += 1;
        }
    }
    let mut worth = [0.0; NUM_BUCKETS];
    for at in 0..num_candidates {
        worth[at] = demand.costs.of(places[at]);
    }
    let fallback = demand.costs.of(start);
    let mut is_chosen = [false; NUM_BUCKETS];
    for _ in 0..most.min(MAX_PLACES) {
        let (mut best, mut best_saved) = (usize::MAX, demand.cost);
        let mut nearer = 0.0;
        let mut next = 0;
        let mut farther = fallback;
        for at in 0..num_candidates {
            if is_chosen[at] {
                nearer = served[at];
                continue;
            }
            if next <= at {
                next =
                    (at + 1..num_candidates).find(|&other| is_chosen[other]).unwrap_or(NUM_BUCKETS);
                farther = worth.get(next).copied().unwrap_or(fallback);
            }
            let saved = (served[at] - nearer) * (worth[at] - farther);
            if saved > best_saved {
                (best, best_saved) = (at, saved);
            }
        }
        if best == usize::MAX {
            break;
        }
        is_chosen[best] = true;
        lengths.insert(places[best]);
    }
}
