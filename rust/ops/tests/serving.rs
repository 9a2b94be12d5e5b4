//! Random lives of an engine that vLLM's calls drive, each step followed by every check.

mod common;

use hybrid_blocks::vllm::KvCacheStats;
use ops::serving::{Event, Setup};
use ops::{Life, Part};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn life() -> impl Strategy<Value = Life> {
    let setup = any::<[u8; Setup::BYTES]>().prop_map(Setup::decode);
    let event = any::<[u8; Event::BYTES]>().prop_map(Event::decode);
    (setup, prop::collection::vec(event, 1..40)).prop_map(|(setup, events)| Life { setup, events })
}

/// Draws the same lives in every run; `make fuzz` draws others.
fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(500)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn requests_read_what_their_tokens_wrote_and_come_to_their_end(life in life()) {
        life.run().map(drop).map_err(|error| TestCaseError::fail(format!("{error}\n{}", life.to_text())))?;
    }

    #[test]
    fn a_life_comes_back_from_its_text(life in life()) {
        prop_assert_eq!(Life::parse(&life.to_text()), Ok(life));
    }
}

#[test]
fn lives_see_all_that_becomes_of_checkpoints() {
    let counts = |stats: &KvCacheStats| {
        let left = [stats.prompt, stats.followed, stats.loaded, stats.kept];
        let gone = [stats.superseded, stats.evicted, stats.given_up, stats.no_room];
        [&left[..], &gone, &[stats.forks]].concat()
    };
    let (mut sums, mut num_inside) = (counts(&KvCacheStats::default()), 0);
    for number in 0..300 {
        let life = Life::decode(&common::bytes(number, Setup::BYTES + 30 * Event::BYTES));
        let engine = life.run().unwrap_or_else(|error| panic!("{error}\n{}", life.to_text()));
        sums.iter_mut().zip(counts(&engine.stats())).for_each(|(sum, count)| *sum += count);
        num_inside += engine.num_inside();
    }
    assert!(sums.iter().all(|&sum| sum > 0), "{sums:?}");
    assert!(num_inside > 100, "{num_inside} states were kept from inside chunks");
}

#[test]
fn half_an_event_at_the_end_of_the_bytes_is_left_out() {
    let bytes = [7; Setup::BYTES + 2 * Event::BYTES + 3];
    assert_eq!(Life::decode(&bytes).events.len(), 2);
    assert_eq!(Life::decode(&[]).setup, Setup::decode([0; Setup::BYTES]));
}
