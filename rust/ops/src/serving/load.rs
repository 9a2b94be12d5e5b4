//! Loads of a KV connector, which writes into the blocks of a request.

use hybrid_blocks::{BlockId, GroupKind};

use super::engine::Engine;
use super::request::Request;
use super::setup::Connector;
use super::step::Load;

impl Engine {
    /// Tokens that the connector has of a request behind `num_local`.
    pub(super) fn num_external(&self, request: &Request, num_local: u32) -> u32 {
        let unit =
            if self.setup.is_slabbed() { self.setup.hash_block_size } else { self.setup.grain() };
        // The last token is always computed, where it may be loaded too: it would read a block that left its window, or
        // a state behind it.
        let is_full = self.groups().all(|(_, group)| group.kind == GroupKind::Full);
        let leaves_one = request.num_known == 1 || !is_full || !self.loads_beside();
        let most = request.num_known - u32::from(leaves_one);
        let reach = match self.setup.connector {
            Connector::None => 0,
            _ => request.reach.min(most) / unit * unit,
        };
        reach.saturating_sub(num_local)
    }

    pub(super) fn loads_beside(&self) -> bool {
        !matches!(self.setup.connector, Connector::None | Connector::InStep)
    }

    /// Begins to load tokens behind `start` into what a request holds now.
    pub(super) fn begin_load(&mut self, request: &Request, start: u32, num_external: u32) {
        let is_beside = self.loads_beside();
        self.loads.push(Load {
            life: request.life(),
            tokens: request.tokens.clone(),
            tables: self.tables(request),
            start,
            end: start + num_external,
            num_steps: if is_beside { request.load_steps } else { 0 },
            fails: is_beside && request.load_fails,
        });
    }

    /// Loads go on, before a step is computed. Returns those that end.
    pub(super) fn go_on_loading(&mut self) -> Vec<Load> {
        let is_over = |load: &mut Load| load.num_steps == 0;
        let ended: Vec<Load> = self.loads.extract_if(.., is_over).collect();
        for load in &ended {
            self.write(load);
        }
        self.loads.iter_mut().for_each(|load| load.num_steps -= 1);
        ended
    }

    /// Tokens up to which what was loaded may be read, as vLLM learns it: by block where there is one group.
    pub(super) fn num_valid(&self, load: &Load) -> u32 {
        match &self.setup.groups[..] {
            [group] => load.right() / group.block_size * group.block_size,
            _ if load.fails => 0,
            _ => load.end,
        }
    }

    fn write(&mut self, load: &Load) {
        for (id, group) in self.groups() {
            let table = &load.tables[id as usize];
            let place = |block: BlockId| self.setup.place(&group, block.0);
            let content = |at: u32| {
                load.tokens.content(at + 1) ^ u64::from(id) ^ u64::from(at >= load.right()) << 63
            };
            if let GroupKind::MambaAligned { .. } = group.kind {
                let block = table[((load.end - 1) / group.block_size) as usize];
                self.memory.write(place(block), 0, content(load.end - 1));
                continue;
            }
            for at in load.start..load.end {
                let block = table[(at / group.block_size) as usize];
                // Blocks before a window are not there.
                if !block.is_null() {
                    self.memory.write(place(block), at % group.block_size, content(at));
                }
            }
        }
    }
}
