//! Where checkpoints are wanted, and options as text.

use super::*;

fn plan(lengths: &[u32]) -> CheckpointPlan {
    let lengths = Lengths::from(lengths);
    CheckpointPlan { lengths, prompt_tokens: 1_000, end: true, ..CheckpointPlan::default() }
}

fn all(policy: &CheckpointPolicy, mut plan: CheckpointPlan) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    while let Some(next) = policy.next(&plan, found.last().copied().unwrap_or(0), 16) {
        found.push(next);
        plan.num_taken += 1;
        if found.len() > 20 {
            break;
        }
    }
    found
}

#[test]
fn planned_lengths_come_in_order_and_periodic_ones_leave_them_room() {
    let policy = CheckpointPolicy { max_per_request: 4, ..CheckpointPolicy::default() };
    assert_eq!(all(&policy, plan(&[320, 992])), [320, 992]);
    let every = CheckpointPolicy { every: Some(250), ..policy };
    assert_eq!(all(&every, plan(&[320, 992])), [256, 320, 512, 992]);
    let none = CheckpointPolicy { max_per_request: 0, ..policy };
    assert_eq!(all(&none, plan(&[320])), [0; 0]);
}

#[test]
fn a_period_beyond_all_lengths_places_nothing() {
    for every in [0, 1, u32::MAX - 16, u32::MAX] {
        let policy =
            CheckpointPolicy { every: Some(every), follow_every: every, ..Default::default() };
        let expected = if every < 2 { vec![16, 32, 48, 64, 80, 96] } else { vec![u32::MAX - 15] };
        assert_eq!(all(&policy, plan(&[])), expected);
        assert_eq!(policy.follows(&plan(&[]), 1_600, 16), every < 2);
    }
}

#[test]
fn the_copy_follows_behind_the_prompt_only() {
    let policy = CheckpointPolicy::default();
    let follows = |plan: CheckpointPlan| {
        (0..1_200u32).filter(|&at| policy.follows(&plan, at, 16)).collect::<Vec<_>>()
    };
    assert_eq!(follows(plan(&[])), [1_024, 1_088, 1_152]);
    assert_eq!(follows(CheckpointPlan { end: false, ..plan(&[]) }), [0; 0]);
}

#[test]
fn given_margins_are_kept_where_the_prompt_is_long_enough() {
    let policy = CheckpointPolicy::default();
    let fixed = |margins: &[u32], num_tokens, branch| {
        let prompt = Prompt { num_tokens, branch, ..Prompt::default() };
        policy.fixed(Lengths::from(margins), prompt, 16).as_slice().to_vec()
    };
    assert_eq!(fixed(&[0], 1_000, 0), [992]);
    assert_eq!(fixed(&[128], 100_000, 0), [99_872]);
    assert_eq!(fixed(&[128], 160, 0), [128], "at most an eighth of the prompt");
    assert_eq!(fixed(&[128, 1_024, 8_192], 4_000, 0), [2_976, 3_872]);
    assert_eq!(fixed(&[0], 1_000, 320), [320, 992]);
}

/// A policy, its text and its shortest text.
const TEXTS: [(&str, &str); 12] = [
    ("learned", "learned"),
    ("none", "none"),
    ("geometric", "fixed:128+1024+8192"),
    ("fixed:1024+128", "fixed:128+1024"),
    ("every:250", "learned/every=250"),
    ("every:250/every=none/every=0", "learned"),
    ("learned/prompt_margin=0", "fixed:0"),
    ("learned/format=int8", "learned/format=int8"),
    ("learned/step_tokens=266", "learned/step_tokens=266"),
    ("none/format=full", "none"),
    ("fixed:16/finish=false/max_per_request=2", "fixed:16/finish=false/max_per_request=2"),
    ("none/branch=true/finish=true", "learned/prompt_end=false"),
];

#[test]
fn a_policy_is_the_same_as_text() {
    for (text, shortest) in TEXTS {
        let policy: CheckpointPolicy = text.parse().unwrap();
        assert_eq!(policy.to_string(), shortest);
        assert_eq!(shortest.parse(), Ok(policy));
        let mut again = CheckpointPolicy::default();
        for (name, value) in policy.options() {
            again.set(name, &value.to_string()).unwrap();
        }
        assert_eq!(again, policy);
    }
}

#[test]
fn text_that_is_no_policy_is_refused_with_what_would_do() {
    let no_name = ["best", "", "every", "every:0", "every:-1", "fixed:", "learned:3", "none:1"];
    for text in no_name.iter().chain(&["fixed:1+x", "every:4294967296", "fixed:1+2+3+4+5+6+7+8+9"])
    {
        let error = text.parse::<CheckpointPolicy>().unwrap_err().to_string();
        assert!(error.contains(&format!("'{text}' is no placement")), "{error}");
        assert!(error.contains("fixed:N[+N]") && error.contains("max_per_request"), "{error}");
    }
    for (text, wanted) in [
        ("learned/finish=maybe", "finish='maybe': use true, false"),
        ("learned/format=int4", "format='int4': use full, bf16, fp8, int8"),
        ("learned/every=often", "every='often': use a number of tokens, none"),
        ("learned/prompt_margin=", "prompt_margin='': use 1 to 8 distances"),
        ("learned/size=3", "'size' is no option of a placement; there are prompt_end"),
        ("learned/finish", "'finish' lacks a value"),
    ] {
        let error = text.parse::<CheckpointPolicy>().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
