//! The places that are learned, and how fast.

use super::*;

const STATE_TOKENS: f64 = 2_400.0;

fn prompt(num_tokens: u32) -> Prompt {
    Prompt { num_tokens, ..Prompt::default() }
}

fn see(placement: &mut Placement, num_prompts: u32, departure: Option<Departure>) {
    let class = PromptClass::default();
    for _ in 0..num_prompts {
        let found = departure.map(|departure| left_by(class, departure));
        placement.on_prompt(class, found, found);
    }
}

fn left_by(author: PromptClass, departure: Departure) -> Leaving {
    Leaving { author, number: 0, departure, num_before: Some(0) }
}

/// Tokens that a prompt of 16,000 saves who leaves it `distance` tokens before its end.
fn saved(placement: &Placement, price: f64, distance: u32) -> u32 {
    let plan = placement.plan(prompt(16_000), price, MAX_PLACES);
    let reached = plan.lengths.as_slice().iter().filter(|&&length| length <= 16_000 - distance);
    reached.max().copied().unwrap_or(0)
}

#[test]
fn lengths_ascend_and_are_there_once() {
    let lengths = Lengths::from(&[8, 4, 8, 4, 6][..]);
    assert_eq!(lengths.as_slice(), [4, 6, 8]);
}

#[test]
fn before_anything_was_seen_places_are_spread_and_memory_decides_how_many() {
    let placement = Placement::new(STATE_TOKENS, 16);
    let count = |price| placement.plan(prompt(16_000), price, MAX_PLACES).lengths.as_slice().len();
    assert!((3..=MAX_PLACES).contains(&count(0.0)), "{}", count(0.0));
    assert_eq!(count(10.0), 0);
    let counts = [0.0, 0.1, 0.3, 1.0, 10.0].map(count);
    assert!(counts.windows(2).all(|pair| pair[0] >= pair[1]), "{counts:?}");
    for distance in [0, 100, 1_000, 8_000] {
        let reached = saved(&placement, 0.0, distance);
        assert!(reached >= (16_000 - distance) / 2, "{reached} of {}", 16_000 - distance);
    }
}

#[test]
fn while_memory_is_free_a_prompt_of_any_length_is_kept_up_to_its_last_whole_block() {
    let mut placement = Placement::new(STATE_TOKENS, 16);
    for num_seen in [0, 20, 300] {
        see(&mut placement, num_seen, Some(Departure::InPrompt(3_000)));
        for num_tokens in (17..40_000).step_by(37) {
            let last = (num_tokens - 1) / 16 * 16;
            for most in [2, 6, MAX_PLACES, 2 * MAX_PLACES] {
                let plan = placement.plan(prompt(num_tokens), 0.0, most);
                let lengths = plan.lengths.as_slice();
                assert!(lengths.contains(&last) && lengths.len() <= most, "{lengths:?}");
            }
        }
        let only = placement.plan(prompt(16_000), 0.0, 1).lengths;
        assert_ne!(only.as_slice(), [15_984], "a single place is the one that saves most");
    }
}

#[test]
fn where_chunks_cost_a_step_a_place_has_to_save_one() {
    let step = 266.0;
    let placement = || {
        let mut placement = Placement::new(STATE_TOKENS, 16);
        placement.set_place_tokens(step);
        placement
    };
    let lengths = |placement: &Placement, num_tokens| {
        placement.plan(prompt(num_tokens), 0.0, MAX_PLACES).lengths.as_slice().to_vec()
    };
    // Nothing was seen: a half of a prompt's tokens is saved at most.
    assert_eq!(lengths(&placement(), 512), [0; 0]);
    assert!(lengths(&placement(), 16_000).len() > 1);
    for (saved, is_kept) in [(200, false), (300, true)] {
        let mut placement = placement();
        see(&mut placement, 2_000, Some(Departure::InPrompt(0)));
        assert_eq!(
            lengths(&placement, saved),
            if is_kept { vec![saved / 16 * 16] } else { vec![] }
        );
    }
    let mut placement = placement();
    see(&mut placement, 300, None);
    assert_eq!(lengths(&placement, 7_500), [0; 0], "prompts that share nothing leave nothing");
}

#[test]
fn a_distance_is_learned_within_300_prompts_and_so_is_another_one() {
    let mut placement = Placement::new(STATE_TOKENS, 16);
    for distance in [700, 40, 3_000, 0] {
        see(&mut placement, 300, Some(Departure::InPrompt(distance)));
        let reached = saved(&placement, 0.5, distance);
        assert!(f64::from(reached) >= 0.95 * f64::from(16_000 - distance), "{reached}");
    }
}

#[test]
fn places_are_where_prompts_are_found_and_worth_is_what_they_share() {
    let (mut placement, class) = (Placement::new(STATE_TOKENS, 16), PromptClass::default());
    let left_at = |distance| Some(left_by(class, Departure::InPrompt(distance)));
    for _ in 0..300 {
        placement.on_prompt(class, left_at(3_000), left_at(0));
    }
    let lengths = placement.plan(prompt(16_000), 0.5, 1).lengths;
    let &[place] = lengths.as_slice() else { panic!("one place, not {lengths:?}") };
    assert!((12_000..=13_000).contains(&place), "attention is there up to 13,000, not {place}");
    let values = placement.outlook(class, 16_000, &[13_000, 16_000], &[0.0; 2]).values();
    assert!(values[0] < 0.1 * values[1], "{values:?}: all share the whole prompt");
}

#[test]
fn prompts_that_nobody_goes_on_from_leave_nothing_where_memory_is_short() {
    let mut placement = Placement::new(STATE_TOKENS, 16);
    see(&mut placement, 600, None);
    let plan = placement.plan(prompt(16_000), 0.5, MAX_PLACES);
    assert_eq!((plan.lengths.as_slice(), plan.end), (&[][..], false));
}

#[test]
fn answers_are_followed_where_they_are_repeated() {
    let mut placement = Placement::new(STATE_TOKENS, 16);
    see(&mut placement, 300, Some(Departure::InAnswer(500)));
    assert!(placement.plan(prompt(16_000), 0.1, MAX_PLACES).end);
    see(&mut placement, 2_000, Some(Departure::InPrompt(64)));
    assert!(!placement.plan(prompt(16_000), 0.1, MAX_PLACES).end);
}

#[test]
fn clients_are_told_apart() {
    let mut placement = Placement::new(STATE_TOKENS, 16);
    let [near, far] = [1, 2].map(|client| PromptClass { client, ..PromptClass::default() });
    for _ in 0..300 {
        for (class, distance) in [(near, 32), (far, 4_000)] {
            let found = Some(left_by(class, Departure::InPrompt(distance)));
            placement.on_prompt(class, found, found);
        }
    }
    let last = |class| {
        let plan = placement.plan(Prompt { class, ..prompt(16_000) }, 1.0, 1);
        plan.lengths.as_slice().to_vec()
    };
    assert_eq!(last(near), [16_000 - 32]);
    assert!((11_000..=12_000).contains(&last(far)[0]), "{:?}", last(far));
}

#[test]
fn a_dear_window_near_the_end_costs_what_it_has_for_itself() {
    let placement = Placement::new(STATE_TOKENS, 16);
    let lengths = |placement: Placement| {
        let plan = placement.plan(prompt(4_096), 1.0, MAX_PLACES);
        plan.lengths.as_slice().to_vec()
    };
    let (states, cheap) =
        (lengths(placement.clone()), lengths(placement.clone().of_windows(4_096)));
    assert_eq!((states.as_slice(), &cheap), (&[][..], &states), "no state is worth 2,400 tokens");
    let dear = lengths(placement.of_windows(1_024));
    assert!(dear.last() > Some(&4_000), "{dear:?}: the window at the end of the request is near");
}

#[test]
fn prompts_that_may_still_be_left_count_only_where_windows_are_cheap() {
    let rate = |placement: Placement| {
        let mut placement = placement;
        see(&mut placement, 32, None);
        placement.found.rates(PromptClass::default()).into_answer
    };
    let placement = Placement::new(STATE_TOKENS, 16);
    let [states, cheap, dear] =
        [0, 4_096, 1_024].map(|window| rate(placement.clone().of_windows(window)));
    assert!(states < 0.06 && cheap < 0.06 && dear > 0.2, "{states} {cheap} {dear}");
}

#[test]
fn every_length_is_aligned_within_the_prompt_and_after_its_start() {
    let placement = Placement::new(STATE_TOKENS, 96);
    for num_tokens in (0..20_000).step_by(377) {
        for start in [0, num_tokens / 2, num_tokens] {
            let asked = Prompt { start, branch: start + 96, ..prompt(num_tokens) };
            let plan = placement.plan(asked, 0.0, 4);
            let lengths = plan.lengths.as_slice();
            assert!(lengths.len() <= 4 && lengths.is_sorted());
            for &length in lengths.iter().filter(|&&length| length != plan.branch) {
                assert!(length > start && length <= num_tokens && length % 96 == 0);
            }
        }
    }
}

#[test]
fn a_prompt_that_may_leave_nothing_leaves_nothing_at_a_branch_either() {
    let placement = Placement::new(STATE_TOKENS, 16);
    let asked = Prompt { branch: 8_000, ..prompt(16_000) };
    assert_eq!(placement.plan(asked, 0.0, 0).lengths, Lengths::default());
    assert_eq!(placement.plan(asked, 0.0, 1).lengths.as_slice(), [8_000]);
}

#[test]
fn a_branch_is_worth_what_those_who_go_on_from_it_save() {
    let placement = Placement::new(STATE_TOKENS, 16);
    let branch_at = |num_left, price| {
        let asked = Prompt { start: 8_000, branch: 8_400, num_left, ..prompt(16_000) };
        placement.plan(asked, price, 1).branch
    };
    // 400 tokens are saved each time: half of them after one prompt, all after two. A state costs 300.
    let price = (300.0 - BOUNDARY_TOKENS) / STATE_TOKENS;
    assert_eq!([0, 1].map(|num_left| branch_at(num_left, price)), [0, 8_400]);
    assert_eq!([0, 1].map(|num_left| branch_at(num_left, price / 2.0)), [8_400; 2]);
}

#[test]
fn bytes_are_worth_what_old_content_saves() {
    let mut pressure = Pressure::new(1_000.0);
    pressure.on_hit(0.0, 500.0);
    assert!(pressure.price() <= 0.0, "nothing was evicted");
    pressure.on_evicted(0.6, 1.0);
    for _ in 0..2 {
        pressure.on_hit(0.3, 500.0);
    }
    assert!(pressure.price() <= 0.0, "it would have been there in half the memory, too");
    pressure.on_hit(0.0, 500.0);
    assert!(pressure.price() <= 0.0, "one hit is no evidence");
    for _ in 0..3_000 {
        pressure.on_hit(pressure.now() - 0.6, 5.0);
        pressure.on_evicted(0.01, 1.0);
    }
    let one_in_two = 0.5 / std::f64::consts::LN_2;
    assert!((pressure.price() - one_in_two).abs() < 0.02, "500 of 1,000 tokens a life");
}

#[test]
fn lives_are_short_where_running_requests_hold_most_of_the_memory() {
    let lives_of = |cached: f64| {
        let mut pressure = Pressure::new(1_000.0);
        pressure.on_evicted(0.05, cached);
        pressure.now()
    };
    assert!((lives_of(1.0) - 0.05).abs() < 1e-9);
    assert!((lives_of(0.1) - 0.5).abs() < 1e-9, "half of what was cached");
    assert!(lives_of(0.0) < 4.0, "nothing was cached for a moment");
    // Requests end, and leave their memory to the cache.
    let mut pressure = Pressure::new(1_000.0);
    (0..100).for_each(|_| pressure.on_evicted(0.01, 0.1));
    (0..100).for_each(|_| pressure.on_evicted(0.05, 1.0));
    let before = pressure.now();
    pressure.on_evicted(0.05, 1.0);
    assert!((pressure.now() - before - 0.05).abs() < 1e-3);
}

#[test]
fn bytes_are_dear_where_running_requests_hold_most_of_the_memory() {
    let price = |cached: f64| {
        let mut pressure = Pressure::new(1_000.0);
        pressure.on_evicted(0.6 * cached, cached);
        pressure.on_hit(0.0, 500.0);
        pressure.on_hit(0.0, 500.0);
        pressure.price()
    };
    assert!(price(1.0) > 0.0);
    assert!((price(0.1) / price(1.0) - 10.0).abs() < 1e-9, "a tenth of the tokens saves as many");
}

#[test]
fn a_block_is_left_by_its_author_and_how_often_is_counted() {
    let mut authors = Authors::new(4);
    let block = crate::ids::BlockId(2);
    assert_eq!(authors.leave(block, 64, 64, 0, 16, 300), None, "nobody is known");
    let author = Author { num_tokens: 100, ..Author::default() };
    authors.set(&[block], author);
    let left = |departure, num_before| {
        Some(Leaving { num_before: Some(num_before), ..left_by(PromptClass::default(), departure) })
    };
    assert_eq!(authors.leave(block, 64, 64, 0, 16, 300), left(Departure::InPrompt(32), 0));
    assert_eq!(authors.leave(block, 64, 64, 0, 16, 300), left(Departure::InPrompt(32), 1));
    authors.set(&[block], author);
    assert_eq!(authors.leave(block, 160, 160, 0, 16, 300), left(Departure::InAnswer(64), 0));
    authors.set(&[block], Author { keeps_end: true, ..author });
    assert_eq!(authors.leave(block, 160, 160, 96, 16, 300), left(Departure::InPrompt(0), 0));
}

#[test]
fn a_prompt_that_is_sent_again_leaves_the_first_one_at_its_end() {
    let (mut authors, block) = (Authors::new(4), crate::ids::BlockId(2));
    for num_tokens in 100..200 {
        let (last, end) = ((num_tokens - 1) / 16 * 16, num_tokens / 16 * 16);
        authors.set(&[block], Author { num_tokens, ..Author::default() });
        let mut left = |reached, length| {
            let leaving = authors.leave(block, reached, reached, reached, 16, length);
            leaving.map(|leaving| leaving.departure)
        };
        assert_eq!(left(last, num_tokens), Some(Departure::InPrompt(0)), "{num_tokens} tokens");
        for (reached, length) in [(last - 16, num_tokens), (last, num_tokens + 16)] {
            let departure = Departure::InPrompt(end - reached);
            assert_eq!(left(reached, length), Some(departure), "{num_tokens} tokens");
        }
    }
}
