//! [`Search`]: one look-up, which finds the longest prefix that every group can restore.

use std::ops::Range;

use hybrid_blocks::{BlockId, Digest, Key};

use super::cost::Costs;
use super::group::Stored;
use super::outcome::{Load, Plan};
use super::planner::Planner;
use super::tier::{MAX_TIERS, Previous, Tier};

impl Planner {
    /// The longest prefix of at most `limit` tokens that the device and the tiers hold together.
    ///
    /// `digests` has one entry a hash block. The device holds the first `num_computed` tokens. `tiers`
    /// come in order of preference, at most 8; further ones are not asked.
    ///
    /// A binary search rules out lengths that lack attention; only an absent chunk counts. States
    /// decide next, then windows, then each attention chunk below the length. A missing chunk
    /// shortens the length to before it, so a group looks for no chunk twice.
    pub fn plan(
        &self,
        tiers: &[&dyn Tier],
        digests: &[Digest],
        num_computed: u32,
        limit: u32,
    ) -> Plan {
        self.plan_soonest(tiers, &Costs::default(), digests, num_computed, limit)
    }

    /// The prefix from which a request can go on soonest, as far as costs are known; else the longest.
    ///
    /// Where several tiers hold a chunk, the tier counts that would read all chunks up to `limit`
    /// soonest. The length is then the one for which reading, and computing what lies between it and
    /// the longest, takes the least time. Tiers are read side by side.
    pub fn plan_soonest(
        &self,
        tiers: &[&dyn Tier],
        costs: &Costs<'_>,
        digests: &[Digest],
        num_computed: u32,
        limit: u32,
    ) -> Plan {
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        Search::new(self, tiers, digests, num_computed).run(costs, limit)
    }
}

/// Chunks of one call to a tier. Behind a missing one, more would be in vain.
const ROW: u32 = 64;

/// State of one look-up over all tiers.
pub(super) struct Search<'a> {
    pub(super) planner: &'a Planner,
    tiers: &'a [&'a dyn Tier],
    /// Tiers by their number, in the order of the calls.
    order: [u8; MAX_TIERS],
    digests: &'a [Digest],
    pub(super) num_computed: u32,
    /// Tokens that the digests stand for.
    known: u32,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        planner: &'a Planner,
        tiers: &'a [&'a dyn Tier],
        digests: &'a [Digest],
        num_computed: u32,
    ) -> Self {
        let known = u32::try_from(digests.len()).unwrap_or(u32::MAX);
        let known = known.saturating_mul(planner.hash_block_size);
        Self { planner, tiers, order: [0; MAX_TIERS], digests, num_computed, known }
    }

    /// The length of at most `limit` tokens from which the request resumes soonest.
    pub(super) fn run(&mut self, costs: &Costs<'_>, limit: u32) -> Plan {
        let limit = limit.min(self.known);
        self.order = costs.order(self.tiers.len(), self.bytes_up_to(limit));
        let longest = self.longest(limit);
        self.soonest(longest, costs)
    }

    fn longest(&self, limit: u32) -> Plan {
        let planner = self.planner;
        let mut full: Vec<Run> = planner.full.iter().map(|it| self.run_of(it)).collect();
        let mut limit = self.align(limit);
        while limit > self.num_computed {
            let bounds = planner.full.iter().zip(&full).map(|(it, run)| self.bound(it, run, limit));
            limit = self.align(bounds.min().unwrap_or(limit).min(limit));
            let Some((length, states)) = self.states(limit) else { break };
            let mut loads = vec![Vec::new(); planner.num_groups];
            limit = length;
            for window in &planner.windows {
                match self.window(window, length) {
                    Ok(found) => loads[window.index()] = found,
                    Err(shorter) => limit = limit.min(shorter),
                }
            }
            if limit == length {
                for (it, run) in planner.full.iter().zip(&mut full) {
                    if let Err(shorter) = self.extend(it, run, limit) {
                        limit = limit.min(shorter);
                    }
                }
            }
            if limit == length {
                for (it, run) in planner.full.iter().zip(full) {
                    loads[it.index()] = it.take(run, length);
                }
                for (it, load) in planner.states.iter().zip(states) {
                    loads[it.index()].push(load);
                }
                return Plan { num_tokens: length, num_passed_by: 0, loads };
            }
            limit = self.align(limit);
        }
        self.nothing()
    }

    pub(super) fn nothing(&self) -> Plan {
        let loads = vec![Vec::new(); self.planner.num_groups];
        Plan { num_tokens: 0, num_passed_by: 0, loads }
    }

    fn align(&self, num_tokens: u32) -> u32 {
        num_tokens - num_tokens % self.planner.alignment
    }

    /// A run that starts after the chunks that the device holds whole.
    fn run_of(&self, stored: &Stored) -> Run {
        let next = self.num_computed / stored.chunk();
        Run { next, previous: [Previous::default(); MAX_TIERS], loads: Vec::new() }
    }

    fn key(&self, stored: &Stored, chunk: u32) -> Option<Key> {
        let end = u64::from(chunk + 1) * u64::from(stored.chunk());
        let digest = end / u64::from(self.planner.hash_block_size) - 1;
        Some(Key { digest: *self.digests.get(digest as usize)?, group: stored.id })
    }

    fn find(&self, key: Key, previous: &[Previous; MAX_TIERS]) -> Option<(u8, BlockId)> {
        self.order[..self.tiers.len()].iter().find_map(|&tier| {
            let at = usize::from(tier);
            Some((tier, self.tiers[at].find(&key, previous[at])?))
        })
    }

    /// The longest length at which `stored` may hold all chunks. Only chunks found absent count, so what
    /// is longer cannot be restored, even if chunks are missing in between.
    fn bound(&self, stored: &Stored, run: &Run, limit: u32) -> u32 {
        let end = limit.saturating_add(stored.margin());
        let (mut low, mut high) = (run.next, end.min(self.known) / stored.chunk());
        while low < high {
            let middle = low + (high - low) / 2;
            let key = self.key(stored, middle);
            if key.is_some_and(|key| self.find(key, &run.previous).is_some()) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (high * stored.chunk()).saturating_sub(stored.margin())
    }

    /// The longest aligned length up to `limit` at which every recurrent group has a state.
    fn states(&self, limit: u32) -> Option<(u32, Vec<Load>)> {
        let alignment = self.planner.alignment;
        let shortest = self.num_computed / alignment + 1;
        let mut loads = Vec::with_capacity(self.planner.states.len());
        for length in (shortest..=limit / alignment).rev().map(|times| times * alignment) {
            loads.clear();
            if self.states_at(length, &mut |_, load| loads.push(load)).is_some() {
                return Some((length, loads));
            }
        }
        None
    }

    /// Hands out the states of a length; `None` if one is missing.
    pub(super) fn states_at(
        &self,
        length: u32,
        take: &mut impl FnMut(&Stored, Load),
    ) -> Option<()> {
        self.planner.states.iter().try_for_each(|stored| {
            let chunk = length / stored.chunk() - 1;
            let key = self.key(stored, chunk)?;
            let (tier, slot) = self.find(key, &[Previous::default(); MAX_TIERS])?;
            take(stored, Load { chunk, key, tier, slot });
            Some(())
        })
    }

    /// The chunks that a window must load for a length. If a chunk is missing, the error is as in
    /// [`Self::extend`].
    pub(super) fn window(&self, window: &Stored, length: u32) -> Result<Vec<Load>, u32> {
        let mut run = self.run_of(window);
        run.next = run.next.max(window.first_needed(length));
        self.extend(window, &mut run, length)?;
        Ok(window.take(run, length))
    }

    /// Extends a run over all chunks of a length and its margin. If one is missing, the error is the
    /// longest length that does not need it.
    fn extend(&self, stored: &Stored, run: &mut Run, length: u32) -> Result<(), u32> {
        let end = (length + stored.margin()) / stored.chunk();
        run.loads.reserve(end.saturating_sub(run.next) as usize);
        while run.next < end {
            let wanted = run.next..end.min(run.next.saturating_add(ROW));
            let (first, num_wanted) = (run.loads.len(), wanted.len());
            run.loads.extend(self.not_found_yet(stored, wanted));
            let num_found = self.find_row(&mut run.loads[first..], &mut run.previous);
            run.loads.truncate(first + num_found);
            run.next += num_found as u32;
            if num_found < num_wanted {
                return Err((run.next * stored.chunk()).saturating_sub(stored.margin()));
            }
        }
        Ok(())
    }

    /// Chunks whose digests are known, before a call to any tier.
    fn not_found_yet(&self, stored: &Stored, chunks: Range<u32>) -> impl Iterator<Item = Load> {
        let step = (stored.chunk() / self.planner.hash_block_size) as usize;
        let first = (chunks.start as usize + 1) * step - 1;
        let digests = self.digests.get(first..).unwrap_or_default().iter().step_by(step);
        chunks.zip(digests).map(|(chunk, &digest)| Load {
            chunk,
            key: Key { digest, group: stored.id },
            tier: Load::NOWHERE,
            slot: BlockId::NULL,
        })
    }

    /// Asks all tiers for a row of chunks. Returns how many of them are there before the first that is not.
    fn find_row(&self, row: &mut [Load], previous: &mut [Previous; MAX_TIERS]) -> usize {
        let mut num_missing = row.len();
        for &tier in &self.order[..self.tiers.len()] {
            if num_missing == 0 {
                return row.len();
            }
            let at = usize::from(tier);
            num_missing -= self.tiers[at].find_row(row, tier, &mut previous[at]);
        }
        row.iter().position(|load| load.tier == Load::NOWHERE).unwrap_or(row.len())
    }
}

/// Chunks of one group that were found in a row.
struct Run {
    /// The chunk to look for next.
    next: u32,
    /// The place in each tier.
    previous: [Previous; MAX_TIERS],
    loads: Vec<Load>,
}

impl Stored {
    /// The loads of a run up to a length, without the margin.
    fn take(&self, mut run: Run, length: u32) -> Vec<Load> {
        let end = length / self.chunk();
        run.loads.truncate(run.loads.partition_point(|load| load.chunk < end));
        run.loads
    }
}
