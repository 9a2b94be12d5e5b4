//! [`OffloadGroup`]: a group as a look-up sees it, and the tokens a chunk.

use hybrid_blocks::GroupKind;

use crate::error::Error;

/// A group of layers whose blocks go down to other tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadGroup {
    /// The kind of its layers.
    pub kind: GroupKind,
    /// Tokens a block, a multiple of the hash block.
    pub block_size: u32,
    /// Bytes of one block, in all layers and of all ranks.
    pub block_bytes: u64,
    /// Whether a drafter reads it. The last entry of a drafter's block depends on the token after
    /// it. So a block counts only if the chunk after it is there too.
    pub use_eagle: bool,
}

/// The chunks that a group must hold so that a request can resume from a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Every chunk from the start.
    Full,
    /// The chunks that the next token looks at.
    Window,
    /// The state after the last token.
    State,
    /// Nothing: it is computed again.
    Free,
}

impl OffloadGroup {
    pub(crate) fn role(&self) -> Role {
        match self.kind {
            GroupKind::Full => Role::Full,
            GroupKind::SlidingWindow { window: 0..=1, .. } => Role::Free,
            GroupKind::SlidingWindow { .. } | GroupKind::Chunked { .. } => Role::Window,
            GroupKind::State { .. }
            | GroupKind::MambaInPlace { .. }
            | GroupKind::MambaAligned { .. } => Role::State,
            _ => Role::Free,
        }
    }

    /// The first token that a request reads when it resumes from `num_tokens`. A window keeps
    /// chunks below itself for running requests; they are not needed here.
    pub(crate) fn first_needed(&self, num_tokens: u32) -> u32 {
        match self.kind {
            GroupKind::SlidingWindow { window, .. } => {
                GroupKind::sliding_window(window).num_skipped_tokens(num_tokens)
            }
            kind => kind.num_skipped_tokens(num_tokens),
        }
    }

    /// Most tokens a chunk may have so that a restored window brings few unread tokens.
    fn most_tokens(&self) -> u32 {
        match self.kind {
            GroupKind::SlidingWindow { window, .. } => window,
            GroupKind::Chunked { chunk } => chunk,
            _ => u32::MAX,
        }
    }
}

/// How large chunks may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Bytes a chunk. A single block may have more.
    pub bytes: u64,
    /// Tokens a chunk. A hit is a multiple of the longest chunk.
    pub tokens: u32,
}

impl Default for ChunkLimits {
    /// 2 MiB, from which on disks reach their rate, and 256 tokens.
    fn default() -> Self {
        Self { bytes: 2 << 20, tokens: 256 }
    }
}

/// The tokens a chunk of each group; 0 for groups that are not stored.
///
/// A chunk is one key, one read and one write, so larger ones cost less. It is a multiple of the group's
/// block and of the hash block, and not longer than the group's window. Where a model has states, no
/// chunk crosses a length at which one may be kept: it divides the least common multiple of all block
/// sizes. Without states it may be that multiple times a power of two.
///
/// # Errors
/// [`Error::InvalidConfig`] where a block size is 0 or no multiple of the hash block, or the common
/// multiple is over 2^20 tokens.
pub fn chunk_sizes(
    groups: &[OffloadGroup],
    hash_block_size: u32,
    limits: ChunkLimits,
) -> Result<Vec<u32>, Error> {
    let stored = || groups.iter().filter(|group| group.role() != Role::Free);
    for group in stored() {
        if hash_block_size == 0
            || group.block_size == 0
            || !group.block_size.is_multiple_of(hash_block_size)
        {
            return Err(Error::InvalidConfig(format!(
                "blocks of {} tokens over hash blocks of {hash_block_size}: blocks must be a \
                 multiple of hash blocks, both at least 1",
                group.block_size
            )));
        }
    }
    let common = stored().try_fold(1u64, |all, group| {
        let all = lcm(all, u64::from(group.block_size));
        (all <= 1 << 20).then_some(all)
    });
    let Some(common) = common else {
        return Err(Error::InvalidConfig(
            "the block sizes of the groups have no common multiple up to 1,048,576 tokens; \
             choose block sizes that divide each other"
                .to_owned(),
        ));
    };
    let has_states = stored().any(|group| group.role() == Role::State);
    let chunk_of = |group: &OffloadGroup| match group.role() {
        Role::Free => 0,
        Role::State => group.block_size,
        Role::Full | Role::Window => {
            let fits = |&chunk: &u64| {
                chunk <= u64::from(group.most_tokens().min(limits.tokens))
                    && chunk / u64::from(group.block_size) * group.block_bytes <= limits.bytes
            };
            let block = u64::from(group.block_size);
            let divisors = (1..=common / block)
                .filter(|times| (common / block).is_multiple_of(*times))
                .map(|times| times * block);
            let doubled = (1..=20).map(|power| common << power).filter(|_| !has_states);
            divisors.chain(doubled).filter(fits).max().unwrap_or(block) as u32
        }
    };
    Ok(groups.iter().map(chunk_of).collect())
}

pub(crate) fn lcm(a: u64, b: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    a / gcd(a, b) * b
}
