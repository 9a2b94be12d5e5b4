//! The cost of deciding where a prompt leaves checkpoints, from the departures of earlier prompts.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use hybrid_blocks::CheckpointPolicy;
use hybrid_blocks::placement::{Beginning, Departure, Leaving, Placement, Prompt, PromptClass};

/// Qwen3.5-27B: all its states take as much memory as the attention of 2,400 tokens.
const STATE_TOKENS: f64 = 2_400.0;

const ALIGNMENT: u32 = 16;

/// A placement after 1,000 prompts. A later prompt resumes three in four of them, from the answer or 0 to
/// 16,000 tokens before the end.
fn warm(client: u16) -> Placement {
    let mut placement = Placement::new(STATE_TOKENS, ALIGNMENT);
    for number in 0..1_000u32 {
        let class = PromptClass { client, beginning: Beginning::Turn };
        let departure = match number % 4 {
            0 => None,
            1 => Some(Departure::InAnswer(number % 700)),
            _ => Some(Departure::InPrompt((1 << (number % 15)) - 1)),
        };
        let left = |departure| Leaving { author: class, number, departure, num_before: Some(0) };
        let found = departure.map(left);
        placement.on_prompt(class, found, found);
    }
    placement
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("placement/plan");
    let most = CheckpointPolicy::default().max_per_request as usize;
    for (client, whose) in [(0, "all"), (7, "client")] {
        let placement = warm(client);
        let class = PromptClass { client, beginning: Beginning::Turn };
        for num_tokens in [500, 100_000] {
            for (memory, price) in [("free", 0.0), ("short", 0.05)] {
                let prompt = Prompt { num_tokens, class, ..Prompt::default() };
                let found = placement.plan(prompt, price, most).lengths;
                assert!(price > 0.0 || !found.as_slice().is_empty(), "nothing is decided");
                let name = BenchmarkId::new(format!("{whose}_{memory}"), num_tokens);
                group.bench_function(name, |b| {
                    b.iter(|| placement.plan(black_box(prompt), black_box(price), most));
                });
            }
        }
    }
    group.finish();
}

fn settings() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = benches;
    config = settings();
    targets = plan
}
criterion_main!(benches);
