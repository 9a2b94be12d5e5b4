//! The places that save most tokens for their cost.

use super::departures::Rates;
use super::distances::{Distances, NUM_BUCKETS};

/// Most checkpoints of one prompt.
pub const MAX_PLACES: usize = 8;

/// Lengths in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    of: [u32; MAX_PLACES],
    len: u8,
}

impl Lengths {
    /// Returns the lengths, ascending.
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

/// Demand for which places are chosen.
#[derive(Debug)]
pub(super) struct Demand<'a> {
    pub(super) rates: &'a Rates,
    /// Whether who goes on into the answer has to go back to the prompt.
    pub(super) serves_answers: bool,
    pub(super) alignment: u32,
    pub(super) distances: &'a Distances,
    /// Tokens that a checkpoint has to save.
    pub(super) cost: f64,
    /// Tokens of a window, where near places share some of it; else 0.
    pub(super) window: u32,
}

impl Demand<'_> {
    /// Tokens that a checkpoint at `place` has to save, between the places before and behind it. A window costs the part
    /// that it has for itself, at least a block.
    fn cost_between(&self, before: u32, place: u32, behind: u32) -> f64 {
        if self.window == 0 {
            return self.cost;
        }
        let start = place.saturating_sub(self.window).max(before);
        let own = place.min(behind.saturating_sub(self.window)).saturating_sub(start);
        let own = own.max(self.alignment).min(self.window);
        self.cost * f64::from(own) / f64::from(self.window)
    }
}

/// Candidates that stand between two chosen places, nearest to the end first.
#[derive(Clone, Copy, Debug)]
struct Gap {
    first: usize,
    /// The one after its last.
    end: usize,
    /// Departures that the chosen place before it serves.
    nearer: f64,
    /// Tokens that the chosen place behind it saves.
    farther: f64,
    /// The candidate that saves most beyond its cost, and how much, if one is worth it.
    best: Option<(usize, f64)>,
}

/// Up to `most` places for a prompt of `num_tokens` tokens that resumes from `start`. Each choice
/// saves the most tokens beside those chosen before; the last one is still worth its cost. A place
/// at distance `d` serves prompts that leave at `d` or nearer to the end. A prompt that leaves
/// farther away goes back to the next place, in the end to `start`.
pub(super) fn choose(demand: &Demand<'_>, start: u32, num_tokens: u32, most: usize) -> Lengths {
    let mut lengths = Lengths::default();
    let end = num_tokens / demand.alignment * demand.alignment;
    // Departures no farther than each bucket's edge, the place that serves them, and what it saves.
    let mut served = [0.0; NUM_BUCKETS];
    let mut places = [0; NUM_BUCKETS];
    let mut worth = [0.0; NUM_BUCKETS];
    let mut num_candidates = 0;
    let mut sum = if demand.serves_answers { demand.rates.into_answer } else { 0.0 };
    let mut last = u32::MAX;
    for (&distance, rate) in demand.distances.as_slice().iter().zip(demand.rates.by_distance) {
        if distance >= end.saturating_sub(start) {
            break;
        }
        sum += rate;
        num_candidates += usize::from(distance != last);
        last = distance;
        places[num_candidates - 1] = end - distance;
        served[num_candidates - 1] = sum;
    }
    for at in 0..num_candidates {
        worth[at] = f64::from(places[at]);
    }
    // The window at the end of the request stays while it runs.
    let behind = |first: usize| first.checked_sub(1).map_or(end, |nearer| places[nearer]);
    let before = |stop: usize| if stop < num_candidates { places[stop] } else { start };
    let gap = |first: usize, stop: usize, nearer: f64, farther: f64| {
        let (mut best, mut most) = (None, 0.0);
        let candidates = served[first..stop].iter().zip(&worth[first..stop]);
        for (at, (served, worth)) in (first..).zip(candidates) {
            let cost = demand.cost_between(before(stop), places[at], behind(first));
            let saved = (served - nearer) * (worth - farther) - cost;
            if saved > most {
                (best, most) = (Some((at, saved)), saved);
            }
        }
        Gap { first, end: stop, nearer, farther, best }
    };
    // A chosen place changes nothing outside the gap that it divides.
    let mut gaps = [gap(0, num_candidates, 0.0, f64::from(start)); MAX_PLACES + 1];
    for num_chosen in 0..most.min(MAX_PLACES) {
        let mut best: Option<(usize, usize, f64)> = None;
        for (number, gap) in gaps[..=num_chosen].iter().enumerate() {
            if let Some((at, saved)) = gap.best
                && best.is_none_or(|(.., most)| saved > most)
            {
                best = Some((number, at, saved));
            }
        }
        let Some((number, at, _)) = best else { break };
        lengths.insert(places[at]);
        let Gap { first, end, nearer, farther, .. } = gaps[number];
        gaps.copy_within(number + 1..=num_chosen, number + 2);
        gaps[number] = gap(first, at, nearer, worth[at]);
        gaps[number + 1] = gap(at + 1, end, served[at], farther);
    }
    lengths
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::learn::places::distances::edge;

    /// Looks at every candidate in every round.
    fn naive(demand: &Demand<'_>, start: u32, num_tokens: u32, most: usize) -> Lengths {
        let end = num_tokens / demand.alignment * demand.alignment;
        let mut candidates: Vec<(u32, f64)> = Vec::new();
        let mut sum = if demand.serves_answers { demand.rates.into_answer } else { 0.0 };
        for bucket in 0..NUM_BUCKETS {
            let distance = edge(bucket) / demand.alignment * demand.alignment;
            if distance >= end.saturating_sub(start) {
                break;
            }
            sum += demand.rates.by_distance[bucket];
            candidates.retain(|&(place, _)| place != end - distance);
            candidates.push((end - distance, sum));
        }
        let mut chosen: Vec<usize> = Vec::new();
        let mut lengths = Lengths::default();
        for _ in 0..most.min(MAX_PLACES) {
            let mut best = (None, 0.0);
            for (at, &(place, served)) in candidates.iter().enumerate() {
                if chosen.contains(&at) {
                    continue;
                }
                let nearer = chosen.iter().filter(|&&it| it < at).max();
                let farther = chosen.iter().filter(|&&it| it > at).min();
                let nearer = nearer.map_or(0.0, |&it| candidates[it].1);
                let farther = farther.map_or(start, |&it| candidates[it].0);
                let behind = chosen.iter().filter(|&&it| it < at).max();
                let behind = behind.map_or(end, |&it| candidates[it].0);
                let cost = demand.cost_between(farther, place, behind);
                let saved = (served - nearer) * f64::from(place - farther) - cost;
                if saved > best.1 {
                    best = (Some(at), saved);
                }
            }
            let Some(at) = best.0 else { break };
            chosen.push(at);
            lengths.insert(candidates[at].0);
        }
        lengths
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        #[test]
        fn the_places_are_those_that_a_look_at_all_finds(
            counts in prop::collection::vec(prop_oneof![Just(0.0), 0.0..0.2f64], NUM_BUCKETS),
            (into_answer, serves_answers) in (0.0..0.5f64, any::<bool>()),
            alignment in prop_oneof![Just(1u32), Just(16), Just(528), Just(784)],
            (start, num_tokens, most) in (0u32..20_000, 0u32..200_000, 0usize..10),
            cost in 0.0..400.0f64,
            window in prop_oneof![Just(0u32), Just(128), Just(1024)],
        ) {
            let mut by_distance = [0.0; NUM_BUCKETS];
            by_distance.copy_from_slice(&counts);
            let rates = Rates { by_distance, into_answer, answer_tokens: 100.0 };
            let distances = Distances::new(alignment);
            let demand = Demand {
                rates: &rates,
                serves_answers,
                alignment,
                distances: &distances,
                cost,
                window,
            };
            let lengths = choose(&demand, start, num_tokens, most);
            prop_assert_eq!(lengths, naive(&demand, start, num_tokens, most));
        }
    }
}
