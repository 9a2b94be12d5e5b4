//! The kinds: their text, and the tokens and blocks that they need.

use super::*;

/// Blocks held while a request comes to `num_tokens` in steps of at most `step`, tried out.
fn most_held(kind: GroupKind, num_tokens: u32, step: u32, block_size: u32) -> u64 {
    let after = |start: u32| {
        let ends = start + 1..=(start + step).min(num_tokens);
        let first = kind.num_skipped_tokens(start) / block_size;
        ends.map(|end| end.div_ceil(block_size) - first).max().unwrap_or(0)
    };
    u64::from((0..num_tokens).map(after).max().unwrap_or(0))
}

#[test]
fn windows_and_moving_states_give_leading_blocks_back() {
    assert!(GroupKind::sliding_window(8).skips() && GroupKind::Chunked { chunk: 8 }.skips());
    assert!(!GroupKind::Full.skips());
}

#[test]
fn the_most_blocks_are_those_that_some_way_to_the_end_holds() {
    for (size, block_size) in (1..=9).flat_map(|size| (1..=6).map(move |block| (size, block))) {
        for kind in [GroupKind::sliding_window(size), GroupKind::Chunked { chunk: size }] {
            for step in 1..=7 {
                // Long enough for every place at which a window can begin in a block.
                let num_tokens = size * block_size * 4 + step;
                assert_eq!(
                    kind.peak_blocks(u64::from(num_tokens), step, block_size),
                    most_held(kind, num_tokens, step, block_size),
                    "{kind:?}, blocks of {block_size}, steps of {step}"
                );
            }
        }
    }
}

#[test]
fn live_tokens_are_those_that_the_last_token_looks_at() {
    let live = |kind: GroupKind| [0, 1, 4, 5, 9].map(|length| kind.num_live_tokens(length));
    assert_eq!(live(GroupKind::Full), [0, 1, 4, 5, 9]);
    assert_eq!(live(GroupKind::sliding_window(4)), [0, 1, 4, 4, 4]);
    assert_eq!(live(GroupKind::Chunked { chunk: 4 }), [0, 1, 4, 1, 1]);
    assert_eq!(live(GroupKind::Cross { encoder_tokens: 7 }), [7; 5]);
    assert_eq!(live(GroupKind::State { slots: 2 }), [0; 5]);
    assert_eq!(live(GroupKind::Ring), [0; 5]);
    for kind in [GroupKind::State { slots: 2 }, GroupKind::Ring] {
        assert_eq!(kind.peak_tokens(100, 4), 0, "slots hold no tokens");
    }
}

#[test]
fn a_kind_is_the_same_as_text() {
    for (text, kind) in [
        ("full", GroupKind::Full),
        ("sliding_window(window=4)", GroupKind::sliding_window(4)),
        (
            "sliding_window(window=4, extra_retained=2)",
            GroupKind::SlidingWindow { window: 4, extra_retained: 2 },
        ),
        ("chunked(window=8)", GroupKind::Chunked { chunk: 8 }),
        ("cross(encoder_tokens=7)", GroupKind::Cross { encoder_tokens: 7 }),
        ("ring", GroupKind::Ring),
        ("state(slots=2)", GroupKind::State { slots: 2 }),
        ("mamba_in_place", GroupKind::MambaInPlace { num_speculative: 0 }),
        (
            "mamba_aligned(num_speculative=1, checkpoint_alignment=64, has_checkpoint_blocks=1)",
            GroupKind::MambaAligned {
                num_speculative: 1,
                checkpoint_alignment: Some(64),
                has_checkpoint_blocks: true,
            },
        ),
    ] {
        assert_eq!(kind.to_string(), text);
        assert_eq!(text.parse(), Ok(kind));
        let given: Vec<_> = kind.parameters().collect();
        assert_eq!(GroupKind::parse(kind.name(), &given), Ok(kind));
    }
    assert_eq!("state".parse(), Ok(GroupKind::State { slots: 1 }));
}

#[test]
fn each_row_is_that_of_the_kind_it_makes() {
    for row in &ROWS {
        let kind = (row.make)([1; 3]);
        assert!(std::ptr::eq(kind.row(), row), "{}", row.name);
        assert_eq!(kind.parameters().count(), row.parameters.len());
    }
}

#[test]
fn what_is_no_kind_is_refused_with_what_would_do() {
    for (text, wanted) in [
        ("bag", "kind 'bag' is not known"),
        ("", "kind '' is not known"),
        ("full(window=4)", "kind 'full' with window=4: it takes full"),
        ("sliding_window", "kind 'sliding_window': it takes sliding_window(window"),
        ("sliding_window(window=0)", "with window=0: it takes"),
        ("chunked(window=x)", "kind 'chunked(window=x)' is not known"),
        ("chunked(window=4", "is not known"),
        ("ring(window=1, slots=2)", "with window=1, slots=2: it takes ring"),
    ] {
        let error = text.parse::<GroupKind>().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
