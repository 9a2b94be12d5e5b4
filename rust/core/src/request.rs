//! Requests and their handles.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::checkpoint::Marks;
use crate::digest::Digest;
use crate::error::Error;
use crate::group::Table;
use crate::hash::HashChain;
use crate::hit::Hit;
use crate::ids::GroupId;

/// What a step looks at for every request, kept together: 32 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    generation: u32,
    /// Tokens known.
    pub(crate) num_tokens: u32,
    /// Tokens computed, those of the adopted prefix included.
    pub(crate) num_computed: u32,
    /// Tokens that room was asked for.
    pub(crate) num_allocated: u32,
    /// Tokens that have room in every group: `num_allocated` up to the end of a block.
    pub(crate) room: u32,
    /// Computed tokens at which some group has a block to commit or to give back.
    pub(crate) next_commit: u32,
    /// The last batched call that named the request.
    pub(crate) stamp: u32,
    /// Whether the request holds blocks.
    pub(crate) running: bool,
}

/// The rest.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) id: String,
    /// Chained digests, one a hash block of known tokens.
    pub(crate) digests: Vec<Digest>,
    /// The chain that makes them, if the request was given as tokens.
    pub(crate) chain: Option<HashChain<i64>>,
    pub(crate) marks: Marks,
    /// Turns of a conversation that were found in the cache one after the other.
    pub(crate) num_turns: u8,
    /// Lengths of the checkpoints that the request went on from and left.
    pub(crate) checkpoints: Vec<u32>,
    /// What the content of each hash block is worth, as far as was said.
    pub(crate) priority: Vec<u64>,
    /// The match found last, with the number of cache changes before it.
    pub(crate) matched: Option<(Hit, u64)>,
}

impl Request {
    /// More tokens are known: a match made before may be too short. It is still what the first
    /// allocation adopts.
    #[inline]
    pub(crate) fn grown(&mut self) {
        if let Some((_, num_changes)) = &mut self.matched {
            *num_changes = u64::MAX;
        }
    }
}

/// All requests. A handle is a row and the row's generation, so that a handle of a freed request
/// names nothing.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) progress: Vec<Progress>,
    pub(crate) rows: Vec<Request>,
    /// One a group of every row, see [`Requests::tables_of`].
    pub(crate) tables: Vec<Table>,
    num_groups: usize,
    vacant: Vec<u32>,
    by_id: FxHashMap<String, u32>,
}

/// Generations stay below this, so that a handle fits a signed 64-bit integer.
const GENERATIONS: u32 = 1 << 31;

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn new(num_groups: usize) -> Self {
        Self { num_groups, ..Self::default() }
    }

    pub(crate) fn add(&mut self, id: &str, num_tokens: u32) -> Result<u64, Error> {
        if self.by_id.contains_key(id) {
            return Err(Error::DuplicateRequest(id.to_owned()));
        }
        let row = self.vacant.pop().unwrap_or_else(|| {
            self.progress.push(Progress::default());
            self.rows.push(Request::default());
            self.tables.resize_with(self.rows.len() * self.num_groups, Table::default);
            self.rows.len() as u32 - 1
        });
        let progress = &mut self.progress[row as usize];
        *progress = Progress { generation: progress.generation, num_tokens, ..Progress::default() };
        let request = &mut self.rows[row as usize];
        id.clone_into(&mut request.id);
        self.by_id.insert(id.to_owned(), row);
        Ok(self.handle(row))
    }

    pub(crate) fn handle(&self, row: u32) -> u64 {
        u64::from(self.progress[row as usize].generation) << 32 | u64::from(row)
    }

    /// Where the tables of a row are, by group.
    #[inline]
    pub(crate) fn tables_of(&self, row: usize) -> Range<usize> {
        row * self.num_groups..(row + 1) * self.num_groups
    }

    /// The table of a row in one group.
    pub(crate) fn table(&self, row: usize, group: GroupId) -> &Table {
        &self.tables[self.tables_of(row)][group.index()]
    }

    /// The row of a handle that is known to be good.
    #[inline]
    pub(crate) fn known_row(handle: u64) -> usize {
        handle as u32 as usize
    }

    /// The row of a handle.
    #[inline]
    pub(crate) fn row(&self, handle: u64) -> Result<usize, Error> {
        let (row, generation) = (Self::known_row(handle), (handle >> 32) as u32);
        match self.progress.get(row) {
            Some(progress) if progress.generation == generation && self.is_taken(row) => Ok(row),
            _ => Err(Error::UnknownRequest { handle }),
        }
    }

    /// A vacant row has a generation that no handle carries yet, but the next one will.
    #[inline]
    fn is_taken(&self, row: usize) -> bool {
        self.progress[row].next_commit != u32::MAX
    }

    pub(crate) fn find(&self, id: &str) -> Option<u64> {
        self.by_id.get(id).map(|&row| self.handle(row))
    }

    pub(crate) fn remove(&mut self, row: usize) {
        let request = &mut self.rows[row];
        self.by_id.remove(&request.id);
        request.id.clear();
        request.digests.clear();
        request.chain = None;
        request.checkpoints.clear();
        request.priority.clear();
        request.matched = None;
        let generation = (self.progress[row].generation + 1) % GENERATIONS;
        self.progress[row] = Progress { generation, next_commit: u32::MAX, ..Progress::default() };
        self.vacant.push(row as u32);
    }

    /// Rows in use.
    pub(crate) fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_id.values().map(|&row| row as usize)
    }
}
