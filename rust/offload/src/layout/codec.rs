//! [`ChunkCodec`]: a chunk as ranks hold it, one rank's share after another, to and from its stored form.

use std::ops::Range;

use super::{GroupLayout, Part, PartKind, Shard, StateFormat};
use crate::error::Error;

/// Pieces of equal size, at equal distances on both sides.
#[derive(Clone, Copy, Debug)]
struct Run {
    count: usize,
    of_ranks: Side,
    stored: Side,
    format: Option<StateFormat>,
    role: Role,
}

/// Where the pieces of a run lie on one side.
#[derive(Clone, Copy, Debug)]
struct Side {
    start: usize,
    bytes: usize,
    stride: usize,
}

impl Side {
    fn new(start: u64, bytes: u64, stride: u64) -> Self {
        Self { start: start as usize, bytes: bytes as usize, stride: stride as usize }
    }

    fn piece(&self, at: usize) -> Range<usize> {
        let start = self.start + at * self.stride;
        start..start + self.bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Stored,
    /// Another rank stores it.
    Replica,
    /// As above. Which ranks share a head was concluded from sizes, so their bytes are compared.
    CheckedReplica,
}

/// The copies that make a stored chunk of the shares of `tp_size` ranks, and the reverse.
///
/// The shares lie one after another; within each the parts are in the order of the layout, and of a part
/// the rank's heads alone: `[rank][part][row][head]`.
#[derive(Clone, Debug)]
pub struct ChunkCodec {
    runs: Vec<Run>,
    rank_bytes: u64,
    ranks_bytes: u64,
    stored_bytes: u64,
    is_identity: bool,
}

impl GroupLayout {
    /// The codec of `tp_size` ranks.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if there is no rank, or the ranks cannot share a part.
    pub fn codec(&self, tp_size: u32) -> Result<ChunkCodec, Error> {
        if tp_size == 0 {
            return Err(Error::InvalidConfig("0 tensor-parallel ranks; 1 is the least".into()));
        }
        let mut runs = Vec::new();
        let mut of_ranks = 0;
        for rank in 0..tp_size {
            let mut stored = 0;
            for part in self.parts() {
                let shard = part.shard(tp_size, rank)?;
                self.add_runs(part, &shard, (of_ranks, stored), &mut runs);
                let rows = u64::from(part.rows);
                of_ranks += rows * shard.num_heads() * part.bytes_per_head;
                stored += rows * u64::from(part.num_heads) * self.stored_head_bytes(part);
            }
        }
        Ok(ChunkCodec {
            is_identity: tp_size == 1 && runs.iter().all(|run| run.format.is_none()),
            runs: runs.into_iter().map(Run::joined).collect(),
            rank_bytes: of_ranks / u64::from(tp_size),
            ranks_bytes: of_ranks,
            stored_bytes: self.num_bytes(),
        })
    }

    /// Adds the runs of what a rank holds of a part. The part begins at `starts`, of ranks and stored.
    fn add_runs(&self, part: &Part, shard: &Shard, starts: (u64, u64), runs: &mut Vec<Run>) {
        let format = self.format_of(part);
        let role = match (shard.is_stored, part.kind) {
            (true, _) => Role::Stored,
            (false, PartKind::KeyValue) => Role::CheckedReplica,
            (false, _) => Role::Replica,
        };
        let (head, stored_head) = (part.bytes_per_head, self.stored_head_bytes(part));
        let (own, all) = (shard.num_heads(), u64::from(part.num_heads));
        let start = starts.1 + u64::from(shard.heads.start) * stored_head;
        let rows = u64::from(part.rows);
        if format.is_none() {
            // Heads of a row lie side by side on both sides.
            let of_ranks = Side::new(starts.0, own * head, own * head);
            let stored = Side::new(start, own * head, all * head);
            runs.push(Run { count: rows as usize, of_ranks, stored, format, role });
            return;
        }
        runs.extend((0..rows).map(|row| {
            let of_ranks = Side::new(starts.0 + row * own * head, head, head);
            let stored = Side::new(start + row * all * stored_head, stored_head, stored_head);
            Run { count: own as usize, of_ranks, stored, format, role }
        }));
    }
}

impl Run {
    /// The same bytes in one piece, where they lie side by side.
    fn joined(self) -> Self {
        let is_joined = |side: &Side| side.stride == side.bytes;
        if self.format.is_some() || !is_joined(&self.of_ranks) || !is_joined(&self.stored) {
            return self;
        }
        let join = |side: Side| Side { bytes: side.bytes * self.count, ..side };
        Self { count: 1, of_ranks: join(self.of_ranks), stored: join(self.stored), ..self }
    }
}

impl ChunkCodec {
    /// Bytes that one rank holds of a chunk.
    pub fn rank_bytes(&self) -> u64 {
        self.rank_bytes
    }

    /// Bytes of a stored chunk.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Whether both forms are the same bytes.
    pub fn is_identity(&self) -> bool {
        self.is_identity
    }

    /// Refuses chunks of other sizes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with the sizes.
    pub fn check(&self, of_ranks: usize, stored: usize) -> Result<(), Error> {
        if (of_ranks as u64, stored as u64) == (self.ranks_bytes, self.stored_bytes) {
            return Ok(());
        }
        Err(Error::InvalidConfig(format!(
            "a chunk of {of_ranks} bytes, stored in {stored}; this layout has {} and {}",
            self.ranks_bytes, self.stored_bytes
        )))
    }

    /// Writes the stored form of what ranks hold. `false` if ranks that should hold the same head differ;
    /// what was written is of no use then.
    ///
    /// # Panics
    /// If [`check`](Self::check) refuses the sizes.
    pub fn encode(&self, of_ranks: &[u8], stored: &mut [u8]) -> bool {
        self.check(of_ranks.len(), stored.len()).expect("sizes were checked");
        for run in self.runs.iter().filter(|run| run.role != Role::Replica) {
            for at in 0..run.count {
                let from = &of_ranks[run.of_ranks.piece(at)];
                let into = &mut stored[run.stored.piece(at)];
                match (run.role, run.format) {
                    // The rank that stores it comes before those that do not.
                    (Role::CheckedReplica, _) if from != into => return false,
                    (Role::CheckedReplica, _) => {}
                    (_, Some(format)) => format.encode(from, into),
                    (_, None) => into.copy_from_slice(from),
                }
            }
        }
        true
    }

    /// Writes what ranks hold, from the stored form.
    ///
    /// # Panics
    /// If [`check`](Self::check) refuses the sizes.
    pub fn decode(&self, stored: &[u8], of_ranks: &mut [u8]) {
        self.check(of_ranks.len(), stored.len()).expect("sizes were checked");
        for run in &self.runs {
            for at in 0..run.count {
                let from = &stored[run.stored.piece(at)];
                let into = &mut of_ranks[run.of_ranks.piece(at)];
                match run.format {
                    Some(format) => format.decode(from, into),
                    None => into.copy_from_slice(from),
                }
            }
        }
    }
}
