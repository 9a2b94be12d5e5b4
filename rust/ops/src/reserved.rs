//! The use of the reserved bytes, counted block by block.

use std::collections::{BTreeMap, BTreeSet};

use hybrid_blocks::{BlockId, ByteSizes, GroupKind, PoolId, ReservedBytes, Role, Store};

use crate::request::Request;
use crate::setup::Group;
use crate::world::{Check, World, ensure};

/// Every pool of a setup cuts it, some with bytes left over.
const SLAB_BYTES: u64 = 24_001;

impl World {
    /// Every byte of the slabs in which a block has an owner is held for one thing.
    pub(crate) fn check_reserved(&self) -> Check {
        let cuts = self.setup.pools();
        let stride = |pool: u32| SLAB_BYTES / u64::from(cuts[pool as usize]);
        // Groups of one pool leave different bytes of a block unused.
        let sizes: Vec<u64> =
            self.groups().map(|(id, group)| stride(group.pool) - u64::from(id)).collect();
        let sizes = ByteSizes { slab: SLAB_BYTES, blocks: &sizes };
        let found = self.system.reserved_bytes(sizes).map_err(|error| error.to_string())?;
        let mut expected = ReservedBytes::default();
        let mut in_tables = BTreeSet::new();
        for (id, group) in self.groups() {
            let size = sizes.blocks[id as usize];
            let mut read_of: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
            for request in &self.requests {
                let table = self.system.table(request.handle, id);
                for (position, block) in (0..).zip(table).filter(|(_, block)| !block.is_null()) {
                    let read = read_of.entry(block.0).or_default();
                    let offsets = 0..group.block_size;
                    read.extend(
                        offsets.filter(|at| {
                            is_read(&group, request, position * group.block_size + at)
                        }),
                    );
                    in_tables.insert((group.pool, block.0));
                }
            }
            let num_blocks = read_of.len() as u64;
            let num_read: u64 = read_of.values().map(|read| read.len() as u64).sum();
            let num_unread = num_blocks * u64::from(group.block_size) - num_read;
            let unfilled = num_unread * size / u64::from(group.block_size);
            expected.unfilled += unfilled;
            expected.needed += num_blocks * size - unfilled;
            expected.padding += num_blocks * u64::from(id);
        }
        let mut num_slabs = 0;
        let store = self.system.store();
        for (pool, &cut) in (0..).zip(cuts) {
            let states = store.pool(PoolId(pool));
            for slab in 1..self.setup.num_slabs {
                let blocks = slab * cut..(slab + 1) * cut;
                if !blocks.clone().any(|block| states.ref_count(BlockId(block)) > 0) {
                    continue;
                }
                num_slabs += 1;
                expected.padding += SLAB_BYTES - u64::from(cut) * stride(pool);
                for block in blocks.filter(|&block| !in_tables.contains(&(pool, block))) {
                    let part = if states.ref_count(BlockId(block)) > 0 {
                        &mut expected.copies
                    } else if states.is_hashed(BlockId(block)) {
                        &mut expected.cached
                    } else {
                        &mut expected.free
                    };
                    *part += stride(pool);
                }
            }
        }
        ensure!(found == expected, "reserved: {found:?}, not {expected:?}");
        let whole = store.num_whole_slabs();
        ensure!(num_slabs + whole == u64::from(self.setup.num_slabs) - 1, "{num_slabs} slabs");
        let total: u64 = found.parts().iter().map(|(_, bytes)| bytes).sum();
        ensure!(total == num_slabs * SLAB_BYTES, "{total} bytes in {num_slabs} slabs: {found:?}");
        Ok(())
    }
}

/// Whether a request reads the token at a place of its table from now on.
fn is_read(group: &Group, request: &Request, at: u32) -> bool {
    match group.kind {
        GroupKind::Cross { encoder_tokens } => at < encoder_tokens,
        kind if kind.role() == Role::State || !group.is_attention() => true,
        _ => {
            let computed = request.computed;
            at < computed && at >= group.first_seen(computed - 1)
        }
    }
}
