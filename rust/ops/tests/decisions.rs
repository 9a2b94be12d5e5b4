//! The decisions of level `natural` over fixed inputs, beside those recorded.
//!
//! The naive model predicts hits and refusals of plain setups only. Which checkpoints are left,
//! what is evicted first and where blocks are placed is right in more than one way, so it is
//! recorded. A change that is meant to decide otherwise records again and says so:
//! `RECORD=1 cargo test -p hybrid-blocks-ops --test decisions`.

mod common;

use std::path::Path;
use std::{env, fs};

use ops::{Input, Op, Setup, World};

const NUM_INPUTS: u64 = 300;
const NUM_OPS: usize = 60;

fn input(number: u64) -> Input {
    let mut input = Input::decode(&common::bytes(number, Setup::BYTES + NUM_OPS * Op::BYTES));
    // Chunks end for checkpoints.
    input.setup.prefill_checkpoint_alignment = None;
    input
}

/// One line an input: the 64-bit FNV-1a hash of all calls, answers and statistics.
fn decisions(number: u64) -> String {
    let input = input(number);
    let mut world = World::new(&input.setup).with_transcript();
    input.run_in(&mut world).expect("a promise is broken");
    let calls = serde_json::to_string(&world.take_transcript()).expect("calls are JSON");
    let text = format!("{calls} {:?}", world.stats());
    let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    format!("{hash:016x}\n")
}

#[test]
fn decisions_are_those_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decisions.txt");
    let lines: Vec<String> = (0..NUM_INPUTS).map(decisions).collect();
    if env::var_os("RECORD").is_some() {
        fs::write(&path, lines.concat()).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap();
    let differs = recorded.split_inclusive('\n').zip(&lines).position(|(old, new)| old != new);
    if let Some(number) = differs {
        panic!("decisions differ, first in this input:\n{}", input(number as u64).to_text());
    }
    assert_eq!(recorded.lines().count(), lines.len());
}
