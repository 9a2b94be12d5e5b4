//! Dynamo's decoder and radix index over events of one engine, and their overlap for each prompt.
//!
//! The standard input holds records: a byte for their kind, their length, their content. A `B` is a
//! batch as vLLM publishes it, a `P` the tokens of a prompt. The argument is the block size.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Read, Write};

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::protocols::{BlockHashOptions, WorkerWithDpRank, compute_block_hash_for_seq};
use dynamo_kv_router::zmq_wire::{ZmqEventNormalizer, decode_event_batch};

struct Router {
    block_size: u32,
    worker: WorkerWithDpRank,
    normalizer: ZmqEventNormalizer,
    tree: RadixTree,
    batches: u64,
    refused: BTreeMap<String, usize>,
}

impl Router {
    fn new(block_size: u32) -> Self {
        Self {
            block_size,
            worker: WorkerWithDpRank::new(1, 0),
            normalizer: ZmqEventNormalizer::new(block_size),
            tree: RadixTree::new(),
            batches: 0,
            refused: BTreeMap::new(),
        }
    }

    /// Takes in a batch in the order of Dynamo's own listener.
    fn read(&mut self, payload: &[u8]) {
        self.batches += 1;
        let batch = decode_event_batch(payload).expect("a batch as vLLM publishes it");
        for raw in batch.events {
            let raw = match self.normalizer.preprocess_with_reason(raw, self.worker) {
                Ok(raw) => raw,
                Err(reason) => {
                    self.refuse(reason.as_label().to_owned());
                    continue;
                }
            };
            let placed = self
                .normalizer
                .normalize_preprocessed(raw, self.batches, self.worker)
                .and_then(|event| event.into_router_event());
            match placed.map(|event| self.tree.apply_event(event)) {
                None => self.refuse("not_converted".to_owned()),
                Some(Err(error)) => self.refuse(format!("{error:?}")),
                Some(Ok(())) => {}
            }
        }
    }

    fn refuse(&mut self, reason: String) {
        *self.refused.entry(reason).or_default() += 1;
    }

    /// Returns how many blocks from the start of a prompt the index credits to the engine.
    fn overlap(&self, tokens: &[u32]) -> u32 {
        let options = BlockHashOptions::default();
        let hashes = compute_block_hash_for_seq(tokens, self.block_size, options);
        let found = self.tree.find_matches(hashes, false);
        found.scores.get(&self.worker).copied().unwrap_or(0)
    }
}

fn main() -> io::Result<()> {
    let block_size = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let mut router = Router::new(block_size.expect("the argument is the block size"));
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input)?;
    let mut out = BufWriter::new(io::stdout());
    let mut rest = input.as_slice();
    while let [kind, a, b, c, d, after @ ..] = rest {
        let size = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let (content, next) = after.split_at(size);
        rest = next;
        if *kind == b'B' {
            router.read(content);
        } else {
            let words = content.chunks_exact(4);
            let tokens: Vec<u32> =
                words.map(|it| u32::from_le_bytes(it.try_into().expect("four bytes"))).collect();
            writeln!(out, "overlap {}", router.overlap(&tokens))?;
        }
    }
    for (reason, count) in &router.refused {
        writeln!(out, "{reason} {count}")?;
    }
    out.flush()
}
