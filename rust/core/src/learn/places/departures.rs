//! [`Departures`]: how far before an earlier prompt's end later ones leave it, and how often.

use super::distances::{Distances, NUM_BUCKETS, bucket_of};

/// Where a prompt leaves the path of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Tokens before the end of the earlier prompt.
    InPrompt(u32),
    /// Tokens after it, within its answer or behind.
    InAnswer(u32),
}

/// Prompts and departures of late, the older ones counting less.
#[derive(Clone, Debug)]
pub(super) struct Departures {
    num_prompts: f32,
    by_distance: [f32; NUM_BUCKETS],
    into_answer: f32,
    answer_tokens: f32,
}

/// Departures a prompt.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    pub(super) by_distance: [f64; NUM_BUCKETS],
    pub(super) into_answer: f64,
    /// How far into an answer, in the mean.
    pub(super) answer_tokens: f64,
}

/// Prompts after which older ones count half. A change of the traffic is half believed after as many.
const MEMORY: f32 = 256.0;

/// Prompts that what is known of all clients counts as, for a client of its own class.
const SHARED_WEIGHT: f64 = 16.0;

/// Prompts that what is known of all counts as, for those that begin alike.
const ALL_WEIGHT: f32 = 8.0;

impl Default for Departures {
    fn default() -> Self {
        Self {
            num_prompts: 0.0,
            by_distance: [0.0; NUM_BUCKETS],
            into_answer: 0.0,
            answer_tokens: 0.0,
        }
    }
}

impl Departures {
    /// Prior, as if of eight prompts: a quarter is resumed behind its end, and a quarter is left in it, at any
    /// distance of 16 to 8,192 tokens alike.
    pub(super) fn prior() -> Self {
        let mut prior = Self {
            num_prompts: 8.0,
            into_answer: 2.0,
            answer_tokens: 2.0 * 256.0,
            ..Self::default()
        };
        let range = 0..=bucket_of(8_192);
        let share = 2.0 / range.clone().count() as f32;
        prior.by_distance[range].fill(share);
        prior
    }

    /// These, where what is known of `all` prompts counts as a few more.
    pub(super) fn beside(&self, all: &Self) -> Self {
        let weight = ALL_WEIGHT / all.num_prompts;
        let joined = |own: f32, all: f32| own + weight * all;
        Self {
            num_prompts: self.num_prompts + ALL_WEIGHT,
            by_distance: std::array::from_fn(|at| {
                joined(self.by_distance[at], all.by_distance[at])
            }),
            into_answer: joined(self.into_answer, all.into_answer),
            answer_tokens: joined(self.answer_tokens, all.answer_tokens),
        }
    }

    pub(super) fn add_prompt(&mut self) {
        self.num_prompts += 1.0;
        if self.num_prompts > MEMORY {
            self.num_prompts /= 2.0;
            self.into_answer /= 2.0;
            self.answer_tokens /= 2.0;
            self.by_distance.iter_mut().for_each(|count| *count /= 2.0);
        }
    }

    pub(super) fn add(&mut self, departure: Departure) {
        match departure {
            Departure::InPrompt(distance) => self.by_distance[bucket_of(distance)] += 1.0,
            Departure::InAnswer(tokens) => {
                self.into_answer += 1.0;
                self.answer_tokens += tokens as f32;
            }
        }
    }

    /// The rates of `own`, where what is known of `all` counts as a few prompts more.
    pub(super) fn rates(all: &Self, own: Option<&Self>) -> Rates {
        let weight = SHARED_WEIGHT / f64::from(all.num_prompts);
        let none = Self::default();
        let own = own.unwrap_or(&none);
        let num_prompts = f64::from(own.num_prompts) + SHARED_WEIGHT;
        let joined = |own: f32, all: f32| f64::from(own) + weight * f64::from(all);
        let into_answer = joined(own.into_answer, all.into_answer);
        let answer_tokens = joined(own.answer_tokens, all.answer_tokens);
        Rates {
            by_distance: std::array::from_fn(|at| {
                joined(own.by_distance[at], all.by_distance[at]) / num_prompts
            }),
            into_answer: into_answer / num_prompts,
            answer_tokens: if into_answer > 0.0 { answer_tokens / into_answer } else { 0.0 },
        }
    }
}

/// Departures a prompt, by distance, summed from the end of the prompt on.
#[derive(Clone, Debug)]
pub(super) struct Served<'a> {
    sums: [f64; NUM_BUCKETS],
    distances: &'a Distances,
}

impl Rates {
    pub(super) fn served<'a>(&self, distances: &'a Distances) -> Served<'a> {
        let mut sums = self.by_distance;
        for at in 1..NUM_BUCKETS {
            sums[at] += sums[at - 1];
        }
        Served { sums, distances }
    }
}

impl Served<'_> {
    /// Prompts that are left at a distance of `distance` or nearer to the end.
    pub(super) fn within(&self, distance: u32) -> f64 {
        let num_near = self.distances.as_slice().partition_point(|&edge| edge <= distance);
        num_near.checked_sub(1).map_or(0.0, |last| self.sums[last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_anything_was_seen_a_quarter_goes_on_from_256_tokens_into_the_answer() {
        let rates = Departures::rates(&Departures::prior(), None);
        assert_eq!((rates.into_answer, rates.answer_tokens), (0.25, 256.0));
        let left: f64 = rates.by_distance.iter().sum();
        assert!((left - 0.25).abs() < 1e-6, "{left}");
    }

    #[test]
    fn answers_are_left_after_the_mean_of_what_was_seen() {
        let mut seen = Departures::default();
        for tokens in [100, 300] {
            seen.add_prompt();
            seen.add(Departure::InAnswer(tokens));
        }
        let rates = Departures::rates(&seen, None);
        assert_eq!((rates.into_answer, rates.answer_tokens), (1.0, 200.0));
    }
}
