//! Random operations on the manager, each followed by every check.

use hybrid_blocks::GroupKind;
use ops::{Group, Input, Op, Part, Setup, longest_request_finishes_alone};
use proptest::prelude::*;

/// Ends with what can be kept in `tests/recorded`.
fn failure(input: &Input, error: &str) -> TestCaseError {
    TestCaseError::fail(format!("{error}\n{}", input.to_text()))
}

fn setup() -> impl Strategy<Value = Setup> {
    any::<[u8; Setup::BYTES]>().prop_map(Setup::decode)
}

fn input() -> impl Strategy<Value = Input> {
    let op = any::<[u8; Op::BYTES]>().prop_map(Op::decode);
    let events = prop::collection::vec(op, 0..100);
    (setup(), events).prop_map(|(setup, events)| Input { setup, events })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn the_manager_keeps_its_promises_after_every_operation(input in input()) {
        input.run().map(drop).map_err(|error| failure(&input, &error))?;
    }

    #[test]
    fn a_request_as_long_as_the_manager_allows_finishes_alone(
        setup in setup(),
        steps in prop::collection::vec(1..=Op::MAX_CHUNK, 40),
    ) {
        longest_request_finishes_alone(&setup, &steps).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn an_input_comes_back_from_its_text(input in input()) {
        prop_assert_eq!(Input::parse(&input.to_text()), Ok(input));
    }
}

#[test]
fn half_an_operation_at_the_end_of_the_bytes_is_left_out() {
    let bytes = [7; Setup::BYTES + 2 * Op::BYTES + 3];
    assert_eq!(Input::decode(&bytes).events.len(), 2);
    assert_eq!(Input::decode(&[]).setup, Setup::decode([0; Setup::BYTES]));
}

#[test]
fn a_line_that_is_no_operation_is_named() {
    let text = Input::decode(&[0; Setup::BYTES + Op::BYTES]).to_text() + "{\"op\": \"dance\"}\n";
    let error = Input::parse(&text).unwrap_err();
    assert!(error.starts_with("line 3: "), "{error}");
}

/// All memory is just enough, and the next block's room beside others must not go to a checkpoint's copy.
#[test]
fn a_request_that_runs_alone_leaves_no_copies_where_its_next_block_goes() {
    let state = Group { kind: GroupKind::State { slots: 2 }, kept_pool: Some(1), ..Group::full(1) };
    let setup = Setup {
        groups: vec![state, Group { pool: 1, ..Group::full(2) }, Group::full(1)],
        hash_block_size: 1,
        num_slabs: 24,
        blocks_per_slab: vec![1, 3],
        placement: "learned/finish=true/follow_every=0/every=1/max_per_request=2/format=fp8".into(),
        prefill_checkpoint_alignment: None,
    };
    let steps = [vec![1, 11, 5], vec![1; 37]].concat();
    assert_eq!(longest_request_finishes_alone(&setup, &steps), Ok(()));
}

/// Chunks of 5 tokens begin inside blocks of 6, so a chunk and a step of 12 lie in four of them.
#[test]
fn a_chunk_that_begins_inside_a_block_has_room_for_its_last_tokens() {
    let chunked = Group { kind: GroupKind::Chunked { chunk: 5 }, ..Group::full(6) };
    let window = GroupKind::SlidingWindow { window: 5, extra_retained: 0 };
    let setup = Setup {
        groups: vec![chunked, Group { kind: window, ..Group::full(6) }],
        hash_block_size: 2,
        num_slabs: 8,
        blocks_per_slab: vec![1],
        placement: "learned/finish=true/follow_every=0/every=0/max_per_request=0".into(),
        prefill_checkpoint_alignment: None,
    };
    let steps = [
        6, 7, 2, 6, 3, 7, 2, 3, 3, 4, 10, 6, 12, 2, 12, 1, 12, 4, 4, 2, 2, 4, 9, 12, 1, 5, 3, 2, 2,
        1, 1, 1, 4, 4, 3, 5, 4, 4, 2, 5,
    ];
    assert_eq!(longest_request_finishes_alone(&setup, &steps), Ok(()));
}

/// One pool of 12 blocks.
fn run(groups: Vec<Group>, events: Vec<Op>) {
    let setup = Setup {
        groups,
        hash_block_size: 2,
        num_slabs: 12,
        blocks_per_slab: vec![],
        placement: "fixed:0/finish=false/max_per_request=0".into(),
        prefill_checkpoint_alignment: None,
    };
    assert_eq!(Input { setup, events }.run().map(drop), Ok(()));
}

fn add(shared: u8) -> Op {
    Op::Add { prompt: 0, shared, own: 0, output: 0, session: 0 }
}

fn compute(which: u8, n: u8) -> [Op; 2] {
    [Op::Allocate { batch: vec![(which, n)], lookahead: 0 }, Op::Advance]
}

#[test]
fn a_match_grows_with_what_others_computed_since_it_was_last_asked_for() {
    let [allocate, advance] = compute(0, 6);
    let find = || Op::Match { which: 1 };
    run(vec![Group::full(2)], vec![add(9), add(9), find(), allocate, advance, find()]);
}

#[test]
fn a_match_grows_with_the_tokens_of_its_request() {
    let [allocate, advance] = compute(0, 5);
    let append = || Op::Append { which: 0, num_tokens: 2 };
    let find = || Op::Match { which: 0 };
    let preempt = Op::Preempt { which: vec![0] };
    let ops = vec![add(3), append(), allocate, advance, preempt, find(), append(), find()];
    run(vec![Group::full(2)], ops);
}

#[test]
fn blocks_of_sizes_that_do_not_divide_each_other_can_be_hit_as_soon_as_they_are_full() {
    let window = Group { kind: GroupKind::sliding_window(7), ..Group::full(6) };
    let [allocate, advance] = compute(0, 6);
    run(
        vec![Group::full(4), window],
        vec![add(13), allocate, advance, Op::Free { which: vec![0] }],
    );
}
