//! [`Planner`]: the longest prefix that every group can restore, and from where.

use hybrid_blocks::{BlockId, Digest, GroupId, Key};

use super::group::{ChunkLimits, OffloadGroup, Role, chunk_sizes, lcm};
use super::outcome::{Load, Plan};
use super::tier::{Previous, Tier};
use crate::error::Error;

/// The most tiers that one look-up can ask.
const MAX_TIERS: usize = 8;

/// A stored group, its chunks and what it must hold.
#[derive(Clone, Copy, Debug)]
struct Stored {
    id: GroupId,
    group: OffloadGroup,
    role: Role,
    /// Tokens a chunk.
    chunk: u32,
}

impl Stored {
    /// Tokens after a length whose chunk must be there too.
    fn margin(&self) -> u32 {
        if self.group.use_eagle && self.role != Role::State { self.chunk } else { 0 }
    }

    /// The first chunk that a request which goes on from `num_tokens` looks at.
    fn first_needed(&self, num_tokens: u32) -> u32 {
        self.group.first_needed(num_tokens) / self.chunk
    }
}

/// Answers which prefix of a prompt can be restored, from which tiers, in one call.
#[derive(Clone, Debug)]
pub struct Planner {
    num_groups: usize,
    hash_block_size: u32,
    states: Vec<Stored>,
    windows: Vec<Stored>,
    full: Vec<Stored>,
    chunks: Vec<u32>,
    /// What the length of a hit is a multiple of, in tokens.
    alignment: u32,
}

impl Planner {
    /// A planner for groups whose chunks are as large as `limits` allow.
    ///
    /// # Errors
    /// As [`chunk_sizes`]; also [`Error::InvalidConfig`] if no group is stored.
    pub fn new(
        groups: &[OffloadGroup],
        hash_block_size: u32,
        limits: ChunkLimits,
    ) -> Result<Self, Error> {
        Self::with_chunks(groups, hash_block_size, chunk_sizes(groups, hash_block_size, limits)?)
    }

    /// A planner for groups whose chunks have `chunks` tokens each; 0 for groups that are not stored.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if no group is stored, or a chunk is no multiple of the hash block.
    pub fn with_chunks(
        groups: &[OffloadGroup],
        hash_block_size: u32,
        chunks: Vec<u32>,
    ) -> Result<Self, Error> {
        let is_whole = |&chunk: &u32| hash_block_size > 0 && chunk.is_multiple_of(hash_block_size);
        if chunks.len() != groups.len() || !chunks.iter().all(is_whole) {
            return Err(Error::InvalidConfig(format!(
                "chunks of {chunks:?} tokens for {} groups over hash blocks of {hash_block_size}: \
                 one size a group, each a multiple of the hash block",
                groups.len()
            )));
        }
        let stored = (0..)
            .map(GroupId)
            .zip(groups)
            .zip(&chunks)
            .map(|((id, &group), &chunk)| Stored { id, group, role: group.role(), chunk });
        let stored: Vec<_> =
            stored.filter(|stored| stored.role != Role::Free && stored.chunk > 0).collect();
        if stored.is_empty() {
            return Err(Error::InvalidConfig(format!("none of {groups:?} can be stored")));
        }
        let alignment = stored.iter().fold(1, |all, it| lcm(all, u64::from(it.chunk)));
        let of = |role| stored.iter().filter(|it| it.role == role).copied().collect();
        Ok(Self {
            num_groups: groups.len(),
            hash_block_size,
            states: of(Role::State),
            windows: of(Role::Window),
            full: of(Role::Full),
            alignment: u32::try_from(alignment).map_err(|_| {
                Error::InvalidConfig(format!("chunks of {chunks:?} tokens have no common multiple"))
            })?,
            chunks,
        })
    }

    /// Tokens a chunk of each group; 0 for groups that are not stored.
    #[must_use]
    pub fn chunks(&self) -> &[u32] {
        &self.chunks
    }

    /// What the length of a hit is a multiple of, in tokens.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The longest prefix of at most `limit` tokens that the device and the tiers hold together.
    ///
    /// `digests` has one entry a hash block. The device holds the first `num_computed` tokens. `tiers`
    /// come in order of preference, at most 8; further ones are not asked.
    ///
    /// Lengths that lack attention are ruled out by a binary search, in which only an absent chunk
    /// counts. States decide next, then windows, then each attention chunk below the length. A missing
    /// chunk shortens the length to before it, so no chunk is asked for twice by one group.
    #[must_use]
    pub fn plan(
        &self,
        tiers: &[&dyn Tier],
        digests: &[Digest],
        num_computed: u32,
        limit: u32,
    ) -> Plan {
        let known = u32::try_from(digests.len()).unwrap_or(u32::MAX);
        let known = known.saturating_mul(self.hash_block_size);
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        let mut search = Search { planner: self, tiers, digests, num_computed, known };
        search.run(limit.min(known))
    }
}

/// One look-up.
struct Search<'a> {
    planner: &'a Planner,
    tiers: &'a [&'a dyn Tier],
    digests: &'a [Digest],
    num_computed: u32,
    /// Tokens that the digests stand for.
    known: u32,
}

impl Search<'_> {
    fn run(&mut self, limit: u32) -> Plan {
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
                let mut run = self.run_of(window);
                run.next = run.next.max(window.first_needed(length));
                match self.extend(window, &mut run, length) {
                    Ok(()) => loads[window.id.index()] = window.take(run, length),
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
                    loads[it.id.index()] = it.take(run, length);
                }
                for (it, load) in planner.states.iter().zip(states) {
                    loads[it.id.index()].push(load);
                }
                return Plan { num_tokens: length, loads };
            }
            limit = self.align(limit);
        }
        Plan { num_tokens: 0, loads: vec![Vec::new(); planner.num_groups] }
    }

    fn align(&self, num_tokens: u32) -> u32 {
        num_tokens - num_tokens % self.planner.alignment
    }

    /// A run that starts after the chunks that the device holds whole.
    fn run_of(&self, stored: &Stored) -> Run {
        let next = self.num_computed / stored.chunk;
        Run { next, previous: [Previous::default(); MAX_TIERS], loads: Vec::new() }
    }

    fn key(&self, stored: &Stored, chunk: u32) -> Option<Key> {
        let end = u64::from(chunk + 1) * u64::from(stored.chunk);
        let digest = end / u64::from(self.planner.hash_block_size) - 1;
        Some(Key { digest: *self.digests.get(digest as usize)?, group: stored.id })
    }

    fn find(&self, key: Key, previous: &[Previous; MAX_TIERS]) -> Option<(u8, BlockId)> {
        (0..)
            .zip(self.tiers)
            .zip(previous)
            .find_map(|((tier, index), &before)| Some((tier, index.find(&key, before)?)))
    }

    /// The longest length at which `stored` may hold all chunks. Only chunks found absent count, so what
    /// is longer cannot be restored, even if chunks are missing in between.
    fn bound(&self, stored: &Stored, run: &Run, limit: u32) -> u32 {
        let end = limit.saturating_add(stored.margin());
        let (mut low, mut high) = (run.next, end.min(self.known) / stored.chunk);
        while low < high {
            let middle = low + (high - low) / 2;
            let key = self.key(stored, middle);
            if key.is_some_and(|key| self.find(key, &run.previous).is_some()) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (high * stored.chunk).saturating_sub(stored.margin())
    }

    /// The longest aligned length up to `limit` at which every recurrent group has a state.
    fn states(&self, limit: u32) -> Option<(u32, Vec<Load>)> {
        let states = &self.planner.states;
        let alignment = self.planner.alignment;
        let shortest = self.num_computed / alignment + 1;
        let mut loads = Vec::with_capacity(states.len());
        for length in (shortest..=limit / alignment).rev().map(|times| times * alignment) {
            loads.clear();
            loads.extend(states.iter().map_while(|stored| {
                let chunk = length / stored.chunk - 1;
                let key = self.key(stored, chunk)?;
                let (tier, slot) = self.find(key, &[Previous::default(); MAX_TIERS])?;
                Some(Load { chunk, key, tier, slot })
            }));
            if loads.len() == states.len() {
                return Some((length, loads));
            }
        }
        None
    }

    /// Extends a run over all chunks of a length and its margin. If one is missing, the error is the
    /// longest length that does not need it.
    fn extend(&self, stored: &Stored, run: &mut Run, length: u32) -> Result<(), u32> {
        let end = (length + stored.margin()) / stored.chunk;
        run.loads.reserve(end.saturating_sub(run.next) as usize);
        while run.next < end {
            let chunk = run.next;
            let found =
                self.key(stored, chunk).and_then(|key| Some((key, self.find(key, &run.previous)?)));
            let Some((key, (tier, slot))) = found else {
                return Err((chunk * stored.chunk).saturating_sub(stored.margin()));
            };
            run.previous[usize::from(tier)].step(slot);
            run.loads.push(Load { chunk, key, tier, slot });
            run.next += 1;
        }
        Ok(())
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
        let end = length / self.chunk;
        run.loads.truncate(run.loads.partition_point(|load| load.chunk < end));
        run.loads
    }
}
