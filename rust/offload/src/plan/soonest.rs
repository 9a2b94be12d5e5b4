//! The length from which a request can go on soonest, among those that can be restored.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::cost::{Bytes, Costs};
use super::group::Stored;
use super::outcome::{Load, Plan};
use super::search::Search;
use super::tier::MAX_TIERS;

/// A length and when all up to the longest one will be there: less is better, then longer.
type Choice = (u64, Reverse<u32>);

fn are_together(one: &Load, next: &Load) -> bool {
    one.tier == next.tier
}

/// Bytes to read for some groups.
fn bytes_of<'a>(plan: &Plan, groups: impl Iterator<Item = &'a Stored>) -> Bytes {
    let mut bytes = [0; MAX_TIERS];
    for stored in groups {
        for run in plan.loads[stored.index()].chunk_by(are_together) {
            bytes[usize::from(run[0].tier)] += run.len() as u64 * stored.chunk_bytes();
        }
    }
    bytes
}

fn add(sum: &mut Bytes, bytes: &Bytes) {
    sum.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
}

/// A group's attention in runs that lie in one tier each.
struct Attention<'a> {
    stored: &'a Stored,
    /// Tier, and the chunk after the last. Runs that were passed are taken away.
    runs: VecDeque<(u8, u32)>,
    /// The chunk after all runs that were passed, and their bytes.
    next: u32,
    passed: Bytes,
}

impl<'a> Attention<'a> {
    fn new(stored: &'a Stored, loads: &[Load]) -> Self {
        let run = |run: &[Load]| (run[0].tier, run[run.len() - 1].chunk + 1);
        Self {
            stored,
            runs: loads.chunk_by(are_together).map(run).collect(),
            next: loads.first().map_or(0, |load| load.chunk),
            passed: [0; MAX_TIERS],
        }
    }

    /// The bytes of all chunks in each tier.
    fn bytes(&self) -> Bytes {
        let (mut bytes, mut next) = (self.passed, self.next);
        for &(tier, end) in &self.runs {
            bytes[usize::from(tier)] += self.bytes_of(end - next);
            next = end;
        }
        bytes
    }

    fn bytes_of(&self, num_chunks: u32) -> u64 {
        u64::from(num_chunks) * self.stored.chunk_bytes()
    }

    /// Adds the bytes of all chunks of a length, which is longer than the one before.
    fn add_up_to(&mut self, length: u32, bytes: &mut Bytes) {
        let end = self.stored.chunks_in(length);
        while let Some(&(tier, last)) = self.runs.front().filter(|&&(_, last)| last <= end) {
            self.passed[usize::from(tier)] += self.bytes_of(last - self.next);
            self.next = last;
            self.runs.pop_front();
        }
        add(bytes, &self.passed);
        if let Some(&(tier, _)) = self.runs.front() {
            bytes[usize::from(tier)] += self.bytes_of(end.saturating_sub(self.next));
        }
    }
}

impl Search<'_> {
    /// Shortens the longest plan to the length from which the request goes on soonest: what is read first
    /// and what is computed after it take the least time. The plan stays where both are equal.
    pub(super) fn soonest(&self, longest: Plan, costs: &Costs<'_>) -> Plan {
        if !longest.is_hit() || costs.per_token.is_none() {
            return longest;
        }
        let full = self.planner.full.iter();
        let attention: Vec<_> =
            full.map(|it| Attention::new(it, &longest.loads[it.index()])).collect();
        let others = self.planner.windows.iter().chain(&self.planner.states);
        let mut bytes = bytes_of(&longest, others);
        for it in &attention {
            add(&mut bytes, &it.bytes());
        }
        if costs.time(&bytes) == 0 {
            return longest;
        }
        let end = longest.num_tokens;
        let nothing = (costs.computing(end - self.num_computed), Reverse(self.num_computed));
        let mut best = nothing.min((costs.time(&bytes), Reverse(end)));
        let mut shorter = None;
        // No length is there sooner than its attention.
        let mut candidates = self.candidates(attention, end, costs, best);
        while let Some(Reverse(candidate)) = candidates.pop() {
            if candidate >= best {
                break;
            }
            let length = candidate.1.0;
            let Some(plan) = self.shorten(&longest, length) else { continue };
            let time = costs
                .time(&bytes_of(&plan, self.planner.stored()))
                .saturating_add(costs.computing(end - length));
            if (time, candidate.1) < best {
                best = (time, candidate.1);
                shorter = Some(plan);
            }
        }
        let length = best.1.0;
        let plan = match length {
            _ if length == end => longest,
            _ if length == self.num_computed => self.nothing(),
            _ => shorter.unwrap_or(longest),
        };
        Plan { num_passed_by: end - length, ..plan }
    }

    /// Lengths below `end`, the longest, that may be better than `best`, with the time that their attention
    /// takes.
    fn candidates(
        &self,
        mut attention: Vec<Attention<'_>>,
        end: u32,
        costs: &Costs<'_>,
        best: Choice,
    ) -> BinaryHeap<Reverse<Choice>> {
        let alignment = self.planner.alignment;
        let mut found = Vec::new();
        let mut length = (self.num_computed / alignment + 1) * alignment;
        while length < end {
            let mut bytes = [0; MAX_TIERS];
            for run in &mut attention {
                run.add_up_to(length, &mut bytes);
            }
            let time = costs.time(&bytes).saturating_add(costs.computing(end - length));
            let choice = (time, Reverse(length));
            if choice < best {
                found.push(Reverse(choice));
            }
            // A longer prefix reads no less. So it is better only once it spares as much computing as this costs.
            let skipped = costs.tokens_in(time.saturating_sub(best.0));
            length = length.saturating_add((skipped / alignment).max(1).saturating_mul(alignment));
        }
        found.into()
    }

    /// The plan of a shorter length, if windows and states are there for it.
    fn shorten(&self, longest: &Plan, length: u32) -> Option<Plan> {
        let mut loads = vec![Vec::new(); longest.loads.len()];
        self.states_at(length, &mut |stored, load| loads[stored.index()].push(load))?;
        for window in &self.planner.windows {
            loads[window.index()] = self.window(window, length).ok()?;
        }
        for full in &self.planner.full {
            let all = &longest.loads[full.index()];
            let end = all.partition_point(|load| load.chunk < full.chunks_in(length));
            loads[full.index()] = all[..end].to_vec();
        }
        Some(Plan { num_tokens: length, num_passed_by: 0, loads })
    }

    /// Bytes of all that a request needs to resume from `limit`, wherever they lie.
    pub(super) fn bytes_up_to(&self, limit: u32) -> u64 {
        let of = |stored: &Stored| {
            let first = stored.first_wanted(self.num_computed, limit);
            u64::from(stored.chunks_in(limit).saturating_sub(first)) * stored.chunk_bytes()
        };
        self.planner.stored().map(of).sum()
    }
}
