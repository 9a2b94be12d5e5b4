//! [`Chain`]: what one request stored so far, and which unit its next chunks belong to.

use hybrid_blocks::{Digest, Key, WorthClass};

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
    /// The length at which a request can resume from `end`.
    length: Option<u32>,
    /// Tokens up to which it needs attention.
    pub(super) last: u32,
}

impl Step {
    /// Whether a chunk of the end is to be stored.
    pub(super) fn is_new(&self, key: &Key) -> bool {
        self.end[..self.num_new].iter().any(|(new, _)| new == key)
    }

    /// A step that stores nothing new: attention up to `last` tokens is there already.
    pub(super) fn shared(last: u32) -> Self {
        Self { last, ..Self::default() }
    }
}

/// A request's way through the forest of units.
///
/// Chunks come a few at a time, a state before or after the attention that leads to it. A unit takes chunks
/// until it has an end; what lies behind its end begins a child.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Requests of one class are alike.
    pub(super) class: WorthClass,
    /// Tokens that were known when it began.
    begin: u32,
    pub(super) unit: Option<UnitId>,
    /// The length of the unit's end, if it has one.
    end: Option<u32>,
    /// Units above it that the request stored, with their lengths.
    passed: Vec<(UnitId, u32)>,
    /// Tokens up to which attention was offered.
    pub(super) reach: u32,
    /// All attention of the request that is known, by tokens and group, and whether its units own it.
    way: Vec<(Chunk, bool)>,
    /// Chunks of windows, with the tokens of the window.
    windows: Vec<(Chunk, u32)>,
}

fn place((key, num_tokens): &Chunk) -> (u32, u32) {
    (*num_tokens, key.group.0)
}

impl Chain {
    /// A request that resumes from a unit of some length. `way` is all its attention in order,
    /// `windows` its chunks of windows, with the tokens of the window.
    pub(super) fn new(
        parent: Option<(UnitId, u32)>,
        class: WorthClass,
        way: Vec<Chunk>,
        windows: Vec<(Chunk, u32)>,
    ) -> Self {
        let (unit, end) = parent.unzip();
        let reach = end.unwrap_or(0);
        let begin = way.last().map_or(0, |&(_, num_tokens)| num_tokens);
        let way = way.into_iter().map(|chunk| (chunk, chunk.1 <= reach)).collect();
        Self { class, begin, unit, end, passed: Vec::new(), reach, way, windows }
    }

    /// All attention of the request that is known.
    pub(super) fn way(&self) -> impl Iterator<Item = &Key> {
        self.way.iter().map(|((key, _), _)| key)
    }

    /// Digests of all tokens before each place where the next turn may go on: the end of what was known at
    /// first, that of all, and the lengths between.
    pub(super) fn places(&self) -> Vec<Digest> {
        let mut lengths: Vec<u32> = self.units().into_iter().map(|(_, length)| length).collect();
        lengths.extend([self.begin, self.reach]);
        lengths.sort_unstable();
        lengths.dedup();
        let digest = |length: u32| {
            let at = self.way.partition_point(|((_, num_tokens), _)| *num_tokens < length);
            let ((key, num_tokens), _) = self.way.get(at)?;
            (*num_tokens == length).then_some(key.digest)
        };
        lengths.into_iter().filter_map(digest).collect()
    }

    /// The unit is gone, and with it the claim to the way that led there.
    pub(super) fn restart(&mut self) {
        (self.unit, self.end, self.reach) = (None, None, 0);
        self.passed.clear();
        self.way.iter_mut().for_each(|(_, is_owned)| *is_owned = false);
    }

    /// The unit that a step continues, unless it begins a new one.
    pub(super) fn unit_for(&self, step: &Step) -> Option<UnitId> {
        let is_within = match (self.end, step.length) {
            (None, _) => true,
            (Some(end), Some(length)) => length == end,
            (Some(end), None) => step.last <= end,
        };
        self.unit.filter(|_| is_within)
    }

    pub(super) fn step_done(&mut self, step: &Step, unit: UnitId) {
        let length = self.length();
        if let Some(before) = self.unit.replace(unit).filter(|&before| before != unit) {
            self.passed.push((before, length));
            self.end = None;
        }
        self.end = step.length.or(self.end);
        self.reach = self.reach.max(step.last);
    }

    /// Tokens that the unit stands for by now.
    fn length(&self) -> u32 {
        self.end.unwrap_or(self.reach)
    }

    /// The request's units from the shortest, each with its length.
    pub(super) fn units(&self) -> Vec<(UnitId, u32)> {
        let last = self.unit.map(|unit| (unit, self.length()));
        self.passed.iter().copied().chain(last).collect()
    }

    /// Notes attention of the request.
    pub(super) fn know(&mut self, chunk: Chunk) {
        if let Err(at) = self.way.binary_search_by_key(&place(&chunk), |(it, _)| place(it)) {
            self.way.insert(at, (chunk, false));
        }
    }

    /// Attention up to `last` tokens that no unit of the request owns.
    pub(super) fn unowned(&self, last: u32) -> impl Iterator<Item = Chunk> {
        let way = self.way.iter().take_while(move |((_, num_tokens), _)| *num_tokens <= last);
        way.filter(|(_, is_owned)| !is_owned).map(|&(chunk, _)| chunk)
    }

    /// Notes that the request's unit owns attention.
    pub(super) fn own(&mut self, path: &[Chunk]) {
        for chunk in path {
            if let Ok(at) = self.way.binary_search_by_key(&place(chunk), |(it, _)| place(it)) {
                self.way[at].1 = true;
            }
        }
    }

    /// Chunks, in order of their tokens, cut where a request can go on: at each state, or, where there is
    /// none, behind the last window. `windows` has the tokens of each window of `end`, 0 for states.
    pub(super) fn steps(&mut self, path: &[Chunk], end: &[Chunk], windows: &[u32]) -> Vec<Step> {
        let ends = || end.iter().copied().zip(windows.iter().copied());
        let mut cuts: Vec<_> =
            ends().filter(|&(_, window)| window == 0).map(|((_, tokens), _)| tokens).collect();
        cuts.dedup();
        self.windows.extend(ends().filter(|&(_, window)| window > 0));
        self.windows.sort_unstable_by_key(|(chunk, _)| place(chunk));
        self.windows.dedup();
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
            step.last = length;
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
        if let Some(&(_, last)) = path.last() {
            steps.push(Step { path, last, ..Step::default() });
        }
        steps
    }
}
