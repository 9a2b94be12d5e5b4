//! Group mixes, and what each kind of layer looks at, in the plainest words.

use hybrid_blocks::{BlockStore, Config, Digest, GroupKind, GroupSpec, Manager, PoolId};

/// Most tokens an operation computes for one request.
pub(crate) const MAX_CHUNK: u32 = 8;

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) groups: Vec<GroupSpec>,
    pub(crate) hash_block_size: u32,
    /// Blocks a slab of each pool; none for one fixed pool.
    pub(crate) blocks_per_slab: Vec<u32>,
    pub(crate) size: u32,
}

const fn group(kind: GroupKind, block_size: u32, pool: u32) -> GroupSpec {
    GroupSpec { kind, block_size, pool: PoolId(pool) }
}

const FULL: GroupKind = GroupKind::Full;

const fn window(window: u32) -> GroupKind {
    GroupKind::sliding_window(window)
}

const fn chunked(chunk: u32) -> GroupKind {
    GroupKind::Chunked { chunk }
}

/// Setups of every kind, by number.
pub(crate) fn setup(number: usize, size: u32) -> Setup {
    let mixes: [(&[GroupSpec], u32, &[u32]); 10] = [
        (&[group(FULL, 2, 0)], 2, &[]),
        (&[group(window(3), 2, 0)], 2, &[]),
        (&[group(FULL, 2, 0), group(window(5), 2, 0)], 2, &[]),
        (&[group(FULL, 4, 0), group(window(4), 2, 0), group(chunked(6), 2, 0)], 2, &[]),
        (&[group(FULL, 4, 0), group(window(7), 6, 0)], 2, &[]),
        (&[group(chunked(8), 2, 0)], 1, &[]),
        (&[group(FULL, 2, 0), group(window(5), 2, 1)], 2, &[3, 2]),
        (&[group(FULL, 2, 0), group(window(3), 4, 1), group(chunked(4), 2, 0)], 2, &[4, 1]),
        (&[group(window(1), 2, 1), group(FULL, 2, 0), group(FULL, 2, 2)], 2, &[1, 2, 5]),
        (&[group(FULL, 2, 0)], 2, &[4]),
    ];
    let (groups, hash_block_size, blocks_per_slab) = mixes[number % mixes.len()];
    Setup {
        groups: groups.to_vec(),
        hash_block_size,
        blocks_per_slab: blocks_per_slab.to_vec(),
        size,
    }
}

impl Setup {
    pub(crate) fn manager(&self) -> Manager {
        let store = if self.blocks_per_slab.is_empty() {
            BlockStore::fixed(self.size)
        } else {
            BlockStore::shared(self.size, &self.blocks_per_slab)
        };
        let config = Config {
            enable_events: true,
            enable_delta: true,
            enable_compaction: false,
            max_chunk: MAX_CHUNK,
            ..Config::new(self.groups.clone(), self.hash_block_size)
        };
        Manager::new(store.unwrap(), config).unwrap()
    }

    /// Blocks a slab of each pool, where a fixed pool's slabs are its blocks.
    pub(crate) fn pools(&self) -> &[u32] {
        if self.blocks_per_slab.is_empty() { &[1] } else { &self.blocks_per_slab }
    }

    /// Digests of the full hash blocks of `tokens`.
    pub(crate) fn digests(&self, tokens: &[u8]) -> Vec<Digest> {
        let size = self.hash_block_size as usize;
        (1..=tokens.len() / size).map(|end| digest(&tokens[..end * size])).collect()
    }
}

/// What stands for the content that `tokens` leave behind at the last of them.
pub(crate) fn content(tokens: &[u8]) -> u64 {
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &token| {
        (hash ^ (u64::from(token) + 1)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Digests differ in their last bytes only, so that a shortcut on leading bytes would be caught.
pub(crate) fn digest(tokens: &[u8]) -> Digest {
    let mut bytes = [0xAB; 32];
    bytes[24..].copy_from_slice(&content(tokens).to_be_bytes());
    bytes.into()
}

/// The first token that the one at `at` looks at.
pub(crate) fn first_seen(kind: GroupKind, at: u32) -> u32 {
    match kind {
        GroupKind::SlidingWindow { window, .. } => (at + 1).saturating_sub(window),
        GroupKind::Chunked { chunk } => at - at % chunk,
        _ => 0,
    }
}
