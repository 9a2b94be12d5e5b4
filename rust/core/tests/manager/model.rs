//! The naive model: requests as token lists, the cache as counted keys, and simulated memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use hybrid_blocks::{BlockId, Digest, Event, GroupId, Key, Manager, PoolId, Store};
use proptest::prelude::*;

use crate::memory::Memory;
use crate::setup::{Setup, content, digest, first_seen};

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) handle: u64,
    pub(crate) tokens: Vec<u8>,
    pub(crate) running: bool,
    pub(crate) computed: u32,
    pub(crate) allocated: u32,
    pub(crate) promised: Option<u32>,
    /// Leading blocks of each group that were entered into the cache or adopted from it.
    pub(crate) hashed: Vec<u32>,
}

pub(crate) struct Model {
    pub(crate) setup: Setup,
    pub(crate) manager: Manager,
    pub(crate) requests: Vec<Request>,
    pub(crate) memory: Memory,
    /// How many blocks carry each key.
    pub(crate) stored: BTreeMap<(u32, Digest), u32>,
    /// Block tables as whoever reads the deltas sees them.
    mirror: BTreeMap<(u32, u32), Vec<BlockId>>,
}

pub(crate) type Check = Result<(), TestCaseError>;

impl Model {
    pub(crate) fn new(setup: Setup) -> Self {
        Self {
            manager: setup.manager(),
            memory: Memory::new(setup.pools()),
            setup,
            requests: Vec::new(),
            stored: BTreeMap::new(),
            mirror: BTreeMap::new(),
        }
    }

    pub(crate) fn table(&self, request: &Request, group: usize) -> Vec<BlockId> {
        self.manager.blocks(request.handle, GroupId(group as u32)).unwrap().to_vec()
    }

    /// The longest prefix, at most `limit` tokens, after which every group finds all that the next
    /// token looks at.
    pub(crate) fn longest_hit(&self, tokens: &[u8], limit: u32) -> u32 {
        let restorable = |hit: u32| {
            self.setup.groups.iter().enumerate().all(|(group, spec)| {
                let size = spec.block_size;
                let first = first_seen(spec.kind, hit);
                hit.is_multiple_of(size)
                    && (0..hit / size).filter(|block| (block + 1) * size > first).all(|block| {
                        let key = digest(&tokens[..((block + 1) * size) as usize]);
                        self.stored.contains_key(&(group as u32, key))
                    })
            })
        };
        (0..=limit).rev().find(|&hit| restorable(hit)).unwrap_or(0)
    }

    /// Blocks that are in tables now, by pool.
    fn live(&self) -> Vec<BTreeSet<u32>> {
        let mut live = vec![BTreeSet::new(); self.setup.pools().len()];
        for request in &self.requests {
            for (group, spec) in self.setup.groups.iter().enumerate() {
                let held = self.table(request, group);
                live[spec.pool.index()].extend(held.iter().filter(|b| !b.is_null()).map(|b| b.0));
            }
        }
        live
    }

    /// Whether a request can get room for `target` tokens, `hit` of them adopted.
    pub(crate) fn fits(&self, request: &Request, hit: u32, target: u32) -> bool {
        let mut live = self.live();
        let mut missing = vec![0u32; live.len()];
        for (group, spec) in self.setup.groups.iter().enumerate() {
            let size = spec.block_size;
            let pool = spec.pool.index();
            let mut held = self.table(request, group).len() as u32;
            if !request.running {
                held = hit / size;
                let first = first_seen(spec.kind, hit);
                for block in (0..held).filter(|block| (block + 1) * size > first) {
                    let tokens = &request.tokens[..((block + 1) * size) as usize];
                    let key = Key { digest: digest(tokens), group: GroupId(group as u32) };
                    live[pool].insert(self.manager.store().get(spec.pool, &key).unwrap().0);
                }
            }
            missing[pool] += target.div_ceil(size).saturating_sub(held);
        }
        let mut slabs_needed = 0;
        for ((live, missing), &per_slab) in live.iter().zip(missing).zip(self.setup.pools()) {
            let slabs: BTreeSet<u32> = live.iter().map(|block| block / per_slab).collect();
            let slack = slabs.len() as u32 * per_slab - live.len() as u32;
            slabs_needed += slabs.len() as u32 + missing.saturating_sub(slack).div_ceil(per_slab);
        }
        slabs_needed < self.setup.size
    }

    /// The next tokens are computed: write all of them, and a rejected draft behind, then look at
    /// everything that they look at.
    pub(crate) fn compute(&mut self, batch: &[(usize, u32)]) -> Check {
        for &(at, num_new) in batch {
            let request = self.requests[at].clone();
            for group in 0..self.setup.groups.len() {
                let (spec, table) = (self.setup.groups[group], self.table(&request, group));
                for token in request.computed..request.allocated {
                    let block = table[(token / spec.block_size) as usize];
                    let value = if token < request.computed + num_new {
                        content(&request.tokens[..=token as usize])
                    } else {
                        0
                    };
                    let place = (spec.pool.0, block.0);
                    self.memory.write(place, token % spec.block_size, value ^ group as u64);
                }
            }
        }
        for &(at, num_new) in batch {
            let request = &self.requests[at];
            for token in request.computed..request.computed + num_new {
                self.look(request, token)?;
            }
        }
        Ok(())
    }

    /// Check that all that the token at `at` looks at, before itself, lies where the tables say.
    pub(crate) fn look(&self, request: &Request, at: u32) -> Check {
        for (group, spec) in self.setup.groups.iter().enumerate() {
            let table = self.table(request, group);
            for token in first_seen(spec.kind, at)..at {
                let block = table[(token / spec.block_size) as usize];
                prop_assert!(!block.is_null(), "token {at} of {request:?} looks at {token}: null");
                let found = self.memory.read((spec.pool.0, block.0), token % spec.block_size);
                let expected = content(&request.tokens[..=token as usize]) ^ group as u64;
                prop_assert_eq!(found, Some(expected), "group {} token {}", group, token);
            }
        }
        Ok(())
    }

    /// Tokens were recorded as computed: blocks that they fill can be hit. Returns the new keys.
    pub(crate) fn record(&mut self, at: usize, num_new: u32, tables: &[Vec<BlockId>]) {
        let request = &mut self.requests[at];
        request.computed += num_new;
        for (group, spec) in self.setup.groups.iter().enumerate() {
            let full = request.computed / spec.block_size;
            for block in request.hashed[group]..full {
                if !tables[group][block as usize].is_null() {
                    let end = ((block + 1) * spec.block_size) as usize;
                    let key = (group as u32, digest(&request.tokens[..end]));
                    *self.stored.entry(key).or_default() += 1;
                }
            }
            request.hashed[group] = request.hashed[group].max(full);
        }
    }

    /// Take in events and deltas, then compare everything that can be seen.
    pub(crate) fn settle(&mut self) -> Check {
        for event in self.manager.take_events() {
            match event {
                Event::Removed(key) => {
                    let key = (key.group.0, key.digest);
                    let count = self.stored.get_mut(&key);
                    prop_assert!(count.is_some(), "{key:?} was removed but never stored");
                    let count = count.unwrap();
                    *count -= 1;
                    if *count == 0 {
                        self.stored.remove(&key);
                    }
                }
                Event::Cleared => self.stored.clear(),
                Event::Stored { group, digests, .. } => {
                    for digest in digests {
                        prop_assert!(self.stored.contains_key(&(group.0, digest)));
                    }
                }
                _ => {}
            }
        }
        for change in self.manager.take_delta() {
            let table = self.mirror.entry((change.row, change.group.0)).or_default();
            let position = change.position as usize;
            table.resize(table.len().max(position + 1), BlockId::NULL);
            table[position] = change.block;
        }
        for request in self.requests.iter().filter(|request| request.running) {
            for group in 0..self.setup.groups.len() {
                let table = self.table(request, group);
                let mirror = self.mirror.get(&(request.handle as u32, group as u32));
                let mirror = mirror.map_or(&[][..], |m| &m[..table.len().min(m.len())]);
                prop_assert_eq!(&table, mirror);
            }
        }
        for request in &self.requests {
            let expected = (request.tokens.len() as u32, request.computed, request.allocated);
            prop_assert_eq!(self.manager.progress(request.handle).unwrap(), expected);
        }
        let keys: usize = (0..self.setup.pools().len() as u32)
            .map(|pool| self.manager.store().prefix_index(PoolId(pool)).len())
            .sum();
        prop_assert_eq!(keys, self.stored.len());
        self.manager.check_integrity().map_err(TestCaseError::fail)
    }

    /// Everything that can be seen, in words.
    pub(crate) fn dump(&self) -> String {
        let mut dump = String::new();
        let store = self.manager.store();
        for pool in (0..store.num_pools()).map(PoolId) {
            let blocks = store.free_order(pool);
            let index = store.prefix_index(pool);
            let counts: Vec<_> = (0..store.pool(pool).num_ids())
                .map(|block| store.pool(pool).ref_count(BlockId(block)))
                .collect();
            write!(dump, "{pool} {blocks:?} {counts:?} {index:?} ").unwrap();
        }
        for request in &self.requests {
            let tables: Vec<_> =
                (0..self.setup.groups.len()).map(|group| self.table(request, group)).collect();
            let progress = self.manager.progress(request.handle);
            write!(dump, "{} {tables:?} {progress:?} ", request.id).unwrap();
        }
        let (slabs, stats) = (store.num_free_slabs(), self.manager.stats());
        write!(dump, "{slabs} {stats:?} {}", self.manager.num_requests()).unwrap();
        dump
    }
}
