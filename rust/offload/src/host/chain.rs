//! [`Chain`]: what one request stored so far, and which unit its next chunks belong to.

use hybrid_blocks::Key;

use super::unit::UnitId;

type Chunk = (Key, u32);

/// Chunks of one unit.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Attention, in order.
    pub(super) path: Vec<Chunk>,
    /// States and windows. Those that are not new are owned by earlier units too.
    pub(super) end: Vec<Chunk>,
    /// How many of `end`, from its start, are new.
    num_new: usize,
    /// The length at which a request can go on from `end`.
    length: Option<u32>,
}

impl Step {
    /// Whether a chunk of the end is to be stored.
    pub(super) fn is_new(&self, key: &Key) -> bool {
        self.end[..self.num_new].iter().any(|(new, _)| new == key)
    }

    /// Tokens up to which the step needs what came before.
    pub(super) fn first_tokens(&self) -> u32 {
        let after_end = self.length.map_or(0, |length| length + 1);
        self.path.first().map_or(after_end, |&(_, num_tokens)| num_tokens)
    }
}

/// A request's way through the forest of units.
///
/// Chunks come a few at a time, a state before or after the attention that leads to it. A unit takes chunks
/// until it has an end; what lies behind its end begins a child.
#[derive(Debug, Default)]
pub(super) struct Chain {
    unit: Option<UnitId>,
    /// The length of the unit's end, if it has one.
    end: Option<u32>,
    /// Attention that the request did not store itself, behind the unit it started from.
    shared: Vec<Chunk>,
    /// Chunks of windows, with the tokens of the window.
    windows: Vec<(Chunk, u32)>,
}

impl Chain {
    /// A request that goes on from a unit of some length. `path` is all its attention.
    pub(super) fn new(parent: Option<(UnitId, u32)>, mut path: Vec<Chunk>) -> Self {
        let (unit, end) = parent.unzip();
        path.retain(|&(_, num_tokens)| num_tokens > end.unwrap_or(0));
        Self { unit, end, shared: path, windows: Vec::new() }
    }

    pub(super) fn unit(&self) -> Option<UnitId> {
        self.unit
    }

    /// The unit that a step goes on with, unless it begins a new one.
    pub(super) fn unit_for(&self, step: &Step) -> Option<UnitId> {
        let is_within = match (self.end, step.length) {
            (None, _) => true,
            (Some(end), Some(length)) => length == end,
            (Some(end), None) => step.path.iter().all(|&(_, num_tokens)| num_tokens <= end),
        };
        self.unit.filter(|_| is_within)
    }

    pub(super) fn step_done(&mut self, step: &Step, unit: UnitId) {
        if self.unit.replace(unit) != Some(unit) {
            self.end = None;
        }
        self.end = step.length.or(self.end);
    }

    /// Attention that came before the first step; nothing later.
    pub(super) fn take_shared(&mut self, first_tokens: u32) -> Vec<Chunk> {
        let mut shared = std::mem::take(&mut self.shared);
        shared.retain(|&(_, num_tokens)| num_tokens < first_tokens);
        shared
    }

    /// Chunks, in order of their tokens, cut where a request can go on: at each state, or, where there is
    /// none, behind the last window. `windows` has the tokens of each window of `end`, 0 for states.
    pub(super) fn steps(&mut self, path: &[Chunk], end: &[Chunk], windows: &[u32]) -> Vec<Step> {
        let ends = || end.iter().copied().zip(windows.iter().copied());
        let mut cuts: Vec<_> =
            ends().filter(|&(_, window)| window == 0).map(|((_, tokens), _)| tokens).collect();
        cuts.dedup();
        self.windows.extend(ends().filter(|&(_, window)| window > 0));
        let last = cuts.last().copied().unwrap_or(0);
        let rest = ends().map(|((_, tokens), _)| tokens).filter(|&tokens| tokens > last).max();
        cuts.extend(rest);
        let mut steps = Vec::with_capacity(cuts.len() + 1);
        let mut from = 0;
        for length in cuts {
            let within = |&(_, tokens): &Chunk| tokens > from && tokens <= length;
            let mut step = Step { length: Some(length), ..Step::default() };
            step.path.extend(path.iter().copied().filter(within));
            step.end.extend(end.iter().copied().filter(within));
            step.num_new = step.end.len();
            let older = self.windows.iter().filter(|&&((key, tokens), window)| {
                tokens <= length && tokens + window > length && !step.is_new(&key)
            });
            let older: Vec<_> = older.map(|&(chunk, _)| chunk).collect();
            step.end.extend(older);
            steps.push(step);
            from = length;
        }
        self.windows.retain(|&((_, tokens), window)| tokens + window > from);
        let path: Vec<_> = path.iter().copied().filter(|&(_, tokens)| tokens > from).collect();
        if !path.is_empty() {
            steps.push(Step { path, ..Step::default() });
        }
        steps
    }
}
