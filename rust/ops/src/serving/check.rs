//! Invariants after every event and every step.

use std::collections::BTreeMap;

use hybrid_blocks::{BlockId, ByteSizes, GroupId, GroupKind, Key, PoolId, Store};

use super::engine::Engine;
use crate::tokens::content_of;
use crate::world::{Check, ensure};

impl Engine {
    pub(super) fn check(&self) -> Check {
        self.manager.check_integrity()?;
        self.check_found()?;
        self.check_reserved()?;
        for request in self.running.iter().chain(&self.holding) {
            let tables = self.tables(request);
            for (id, group) in self.groups() {
                let held = tables[id as usize].iter().filter(|block| !block.is_null()).count();
                let most = self.setup.admission_cap(&group);
                ensure!(
                    most.is_none_or(|most| held <= most as usize),
                    "{held} blocks of group {id}, {most:?} at most: {request:?}"
                );
            }
        }
        self.check_entered()
    }

    /// The parts of the reserved bytes are those of all slabs in which a block has an owner, a connector's among them.
    fn check_reserved(&self) -> Check {
        const SLAB_BYTES: u64 = 24_001;
        let store = self.manager.store();
        let stride = |pool| SLAB_BYTES / u64::from(store.blocks_per_slab(pool));
        let blocks: Vec<u64> =
            self.groups().map(|(id, group)| stride(PoolId(group.pool)) - u64::from(id)).collect();
        let sizes = ByteSizes { slab: SLAB_BYTES, blocks: &blocks };
        let requests = self.running.iter().chain(&self.holding);
        let computed: BTreeMap<&str, u32> =
            requests.map(|request| (&*request.id, request.num_computed)).collect();
        let computed = |handle| computed.get(self.manager.id(handle)?).copied();
        let found = self.manager.reserved_bytes(sizes, computed);
        let found = found.map_err(|error| error.to_string())?;
        let total: u64 = found.parts().iter().map(|(_, bytes)| bytes).sum();
        let num_slabs = store.num_slabs() - store.num_whole_slabs();
        ensure!(total == num_slabs * SLAB_BYTES, "{total} bytes in {num_slabs} slabs: {found:?}");
        Ok(())
    }

    /// A look-up finds what is written, and nothing that a load, or a step that was given up, has not written.
    fn check_found(&self) -> Check {
        let store = self.manager.store();
        for pool in (0..store.num_pools()).map(PoolId) {
            let index = store.prefix_index(pool);
            for block in 0..store.pool(pool).num_ids() {
                let Some((Key { digest, group }, num_tokens)) = index.first_key(BlockId(block))
                else {
                    continue;
                };
                let of = &self.setup.groups[group.index()];
                ensure!(pool.0 == of.kept(), "block {block} of pool {pool} has a key of {group}");
                if of.kept() != of.pool && store.pool(pool).ref_count(BlockId(block)) > 0 {
                    // A copy into it is still to be made, and who resumes from it copies what is copied.
                    continue;
                }
                let offset = if of.is_attention() { (num_tokens - 1) % of.block_size } else { 0 };
                let found = self.memory.read(self.setup.kept_place(of, block), offset);
                let expected = content_of(digest) ^ u64::from(group.0);
                ensure!(
                    found == Some(expected),
                    "block {block} of group {group} is found for {num_tokens} tokens that are not in it"
                );
            }
        }
        Ok(())
    }

    /// Full blocks of full attention are found that running requests hold, as far as steps have ended.
    fn check_entered(&self) -> Check {
        for request in &self.running {
            let handle = self.manager.find(&request.id).unwrap_or(u64::MAX);
            let num_done = request.num_computed - request.num_in_flight;
            let grain = if self.setup.has_states() {
                self.setup.hash_block_size
            } else {
                self.setup.grain()
            };
            let num_done = num_done.min(request.num_known) / grain * grain;
            for (id, group) in self.groups().filter(|(_, group)| group.kind == GroupKind::Full) {
                let num_held = self.manager.blocks(handle, GroupId(id)).len() as u32;
                for position in 0..(num_done / group.block_size).min(num_held) {
                    let digest = request.tokens.digest((position + 1) * group.block_size);
                    let key = Key { digest, group: GroupId(id) };
                    let is_found = self.manager.store().get(PoolId(group.kept()), &key).is_some();
                    ensure!(is_found, "block {position} of group {id} is not found: {request:?}");
                }
            }
        }
        Ok(())
    }
}
