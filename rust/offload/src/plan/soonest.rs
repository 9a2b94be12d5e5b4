//! The length from which a request can go on soonest, among those that can be restored.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cost::{Bytes, Costs};
use super::outcome::{Load, Plan};
use super::search::{MAX_TIERS, Search};
use super::stored::Stored;

/// A length and when all up to the longest one will be there: less is better, then longer.
type Choice = (u64, Reverse<u32>);

impl Search<'_> {
    /// Shortens the longest plan to the length from which the request goes on soonest: what is read first
    /// and what is computed after it take the least time. The plan stays where both are equal.
    pub(super) fn soonest(&self, longest: Plan, costs: &Costs<'_>) -> Plan {
        let bytes = self.bytes_of(&longest);
        if !longest.is_hit() || costs.per_token.is_none() || costs.time(&bytes) == 0 {
            return longest;
        }
        let end = longest.num_tokens;
        let nothing = (costs.computing(end - self.num_computed), Reverse(self.num_computed));
        let mut best = nothing.min((costs.time(&bytes), Reverse(end)));
        let mut shorter = None;
        // No length is there sooner than its attention.
        let mut candidates = self.candidates(&longest, costs, best);
        while let Some(Reverse(candidate)) = candidates.pop() {
            if candidate >= best {
                break;
            }
            let length = candidate.1.0;
            let Some(plan) = self.shorten(&longest, length) else { continue };
            let time = costs.time(&self.bytes_of(&plan)) + costs.computing(end - length);
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

    /// Lengths below the longest that may be better than `best`, with the time that their attention takes.
    fn candidates(
        &self,
        longest: &Plan,
        costs: &Costs<'_>,
        best: Choice,
    ) -> BinaryHeap<Reverse<Choice>> {
        let alignment = self.planner.alignment;
        let end = longest.num_tokens;
        let mut runs: Vec<_> = self
            .planner
            .full
            .iter()
            .map(|it| (it, longest.loads[it.index()].iter().peekable()))
            .collect();
        let mut bytes = [0; MAX_TIERS];
        let mut found = Vec::new();
        for length in (self.num_computed / alignment + 1..end / alignment).map(|at| at * alignment)
        {
            for (stored, loads) in &mut runs {
                let num_bytes = stored.chunk_bytes();
                while let Some(load) = loads.next_if(|load| load.chunk < stored.chunks_in(length)) {
                    bytes[usize::from(load.tier)] += num_bytes;
                }
            }
            let choice = (costs.time(&bytes) + costs.computing(end - length), Reverse(length));
            if choice < best {
                found.push(Reverse(choice));
            }
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

    fn bytes_of(&self, plan: &Plan) -> Bytes {
        let mut bytes = [0; MAX_TIERS];
        for stored in self.planner.stored() {
            let num_bytes = stored.chunk_bytes();
            for Load { tier, .. } in &plan.loads[stored.index()] {
                bytes[usize::from(*tier)] += num_bytes;
            }
        }
        bytes
    }

    /// Bytes of all that a request needs which goes on from `limit`, wherever it lies.
    pub(super) fn bytes_up_to(&self, limit: u32) -> u64 {
        let of = |stored: &Stored| {
            let first = stored.first_wanted(self.num_computed, limit);
            u64::from(stored.chunks_in(limit).saturating_sub(first)) * stored.chunk_bytes()
        };
        self.planner.stored().map(of).sum()
    }
}
