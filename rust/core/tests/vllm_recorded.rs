//! The engine decides as vLLM does: lives of vLLM's own managers, recorded, are lived again.

mod recorded;

use recorded::fixture::{self, Life};
use recorded::replay::{Caller, Spared, replay};

/// Every life of a fixture, and how many idle steps were spared.
fn live_again(name: &str, caller: Caller) -> Spared {
    let (head, lives) = fixture::read(name);
    assert_eq!(lives.len(), head.num_lives);
    assert_eq!(lives.iter().map(|life| life.steps.len()).sum::<usize>(), head.num_steps);
    let live = |life: &Life| {
        replay(life, caller).unwrap_or_else(|what| panic!("{name} of vLLM {}: {what}", head.vllm))
    };
    lives.iter().map(live).fold(Spared::default(), |sum, spared| Spared {
        num_idle: sum.num_idle + spared.num_idle,
        num_spared: sum.num_spared + spared.num_spared,
    })
}

/// The fixtures of all releases, those of rings or all others.
fn recorded(of_rings: bool) -> Vec<String> {
    let mut names = fixture::names();
    names.retain(|name| name.ends_with("-ring.jsonl.gz") == of_rings);
    assert!(names.len() >= 2, "{names:?}");
    names
}

#[test]
fn every_answer_is_that_of_vllm() {
    for name in recorded(false) {
        live_again(&name, Caller::Plain);
    }
}

#[test]
fn calls_that_are_said_to_change_nothing_need_not_be_made() {
    for name in recorded(false) {
        let Spared { num_idle, num_spared } = live_again(&name, Caller::Sparing);
        let num_made = num_idle - num_spared;
        assert!(
            num_made * 1_000 <= num_idle * 92,
            "{name}: {num_made} of {num_idle} idle steps are not spared"
        );
    }
}

#[test]
fn a_ring_holds_one_block_a_request_and_caches_nothing() {
    for name in recorded(true) {
        live_again(&name, Caller::Plain);
        live_again(&name, Caller::Sparing);
    }
}
