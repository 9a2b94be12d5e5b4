"""Host memory of a deployment that is sized: what requests find there, and what loads take."""

from dataclasses import replace

import numpy as np
import pytest
from hybrid_blocks.model import load_model
from hybrid_blocks.plan import Deployment
from hybrid_blocks.replay import Cache, Engine, EngineConfig, ManagerName, make_manager
from hybrid_blocks.replay.cache import plan_cache
from hybrid_blocks.replay.variant import Variant
from hybrid_blocks.sizing.candidate import Candidate, make_candidates
from hybrid_blocks.sizing.evaluate import evaluate
from hybrid_blocks.sizing.hosted import BYTES_A_SECOND, make_hosted
from hybrid_blocks.sizing.question import Question
from hybrid_blocks.sizing.search import search
from hybrid_blocks.sizing.slo import parse_slo
from hybrid_blocks.trace import Trace, shared_prefixes
from hybrid_blocks.trace.builder import TraceBuilder

PROMPT, OUTPUT, DISTINCT = 3000, 4, 24
CONFIG = EngineConfig(max_num_seqs=4, max_num_batched_tokens=4096)
# With a device that holds a few of the texts at most.
MODELS = {"Granite-4.0-H-Tiny": 1 << 30, "Phi-4": 2 << 30, "gpt-oss-20b": 256 << 20}
SMALL, LARGE = MODELS["Phi-4"], 64 << 30


def turns(rounds: int = 3) -> Trace:
    """Users who ask in turn, each time with 160 tokens more; a small device holds few of them."""
    builder = TraceBuilder("turns")
    length = PROMPT + OUTPUT + 160 * rounds
    texts = [builder.fresh(length)[0] for _ in range(DISTINCT)]
    for number in range(rounds * DISTINCT):
        turn, user = divmod(number, DISTINCT)
        prompt = PROMPT + 160 * turn
        builder.add(
            [(texts[user], prompt), builder.fresh(OUTPUT)],
            arrival=2.0 * number,
            prompt_tokens=prompt,
            output_tokens=OUTPUT,
        )
    return builder.build()


def cache_of(model: str, memory: int, tp: int = 1) -> Cache:
    return plan_cache(
        load_model(model), memory, Deployment(tp=tp, in_flight_batches=1, max_num_seqs=4)
    )


def hits(engine: Engine) -> list[int]:
    return engine.timeline.hit_tokens.tolist()


@pytest.mark.parametrize("model", MODELS)
def test_a_request_finds_in_host_memory_what_a_large_device_would_hold(model: str) -> None:
    trace, small, large = turns(), cache_of(model, MODELS[model]), cache_of(model, LARGE)

    def on_device(cache: Cache) -> Engine:
        options = Variant().options(trace, cache, CONFIG)
        manager = make_manager(ManagerName.RUST, cache, CONFIG, rust=options)
        engine = Engine(trace, manager, cache, CONFIG)
        engine.run()
        return engine

    hosted = make_hosted(trace, small, CONFIG, Variant().options(trace, small, CONFIG), LARGE)
    hosted.run()
    if any(group.kind == "state" for group in small.geometry.groups):
        # A device learns from its own hits where to keep states.
        assert sum(hits(hosted)) > 0.95 * sum(hits(on_device(large)))
    else:
        assert hits(hosted) == hits(on_device(large))
    assert sum(hits(hosted)[DISTINCT:]) > 0.8 * trace.prompt_tokens[DISTINCT:].sum()
    assert sum(hits(on_device(small))) < 0.2 * sum(hits(hosted))
    hosted.manager.check_integrity()


def test_a_load_takes_as_long_as_its_bytes() -> None:
    trace, cache = turns(2), cache_of("Phi-4", SMALL)
    clock = replace(CONFIG.step_time, per_prefill_token=0.0, per_context_token=0.0)
    config = replace(CONFIG, step_time=clock)
    engine = make_hosted(trace, cache, config, Variant().options(trace, cache, config), LARGE)
    engine.run()
    first = engine.latencies.of("ttft")
    token_bytes = sum(it.block_bytes / it.block_tokens for it in cache.geometry.groups)
    waited = np.array(hits(engine)) * token_bytes / BYTES_A_SECOND
    steps = clock.fixed + clock.per_sequence
    assert waited[DISTINCT:].min() > 4 * steps
    assert first == pytest.approx(waited + steps, rel=0.01)


def test_cards_load_side_by_side() -> None:
    def waits(tp: int) -> float:
        trace, cache = turns(2), cache_of("Phi-4", SMALL // tp, tp)
        engine = make_hosted(trace, cache, CONFIG, Variant().options(trace, cache, CONFIG), LARGE)
        engine.run()
        assert sum(hits(engine)) > 0
        return float(np.median(engine.latencies.of("ttft")[DISTINCT:]))

    assert waits(2) < 0.7 * waits(1)


def test_a_search_takes_host_memory_only_where_it_serves() -> None:
    trace = turns()
    question = Question(
        trace=trace,
        prefixes=shared_prefixes(trace, 16),
        model=load_model("Granite-4.0-H-Tiny"),
        targets=parse_slo("ttft_p50<200ms"),
        deployment=Deployment(in_flight_batches=1, max_num_seqs=4, max_num_batched_tokens=4096),
        config=CONFIG,
        utilization=0.68,
    )
    hosts = (0, 1 << 30, LARGE)
    candidates = make_candidates(("L4",), (1,), {"L4": 1.0}, hosts=hosts, host_price=0.01)
    assert [one.cost for one in candidates] == pytest.approx([1.0, 1.01, 1.64])
    assert candidates[2].name == "1xL4 with 64 GiB of host memory"
    every = [evaluate(question, candidate, is_whole=True) for candidate in candidates]
    assert [row.serves for row in every] == [False, False, True]
    found = search(question, candidates)
    assert found.best is not None
    assert found.best.candidate == candidates[2]
    assert found.best.measured == every[2].measured
    easy = replace(question, targets=parse_slo("ttft_p50<900s"))
    best = search(easy, candidates).best
    assert best is not None
    assert best.candidate.host_bytes == 0


def test_host_memory_too_small_for_a_chunk_says_so() -> None:
    question = Question(
        trace=turns(1),
        prefixes=shared_prefixes(turns(1), 16),
        model=load_model("Granite-4.0-H-Tiny"),
        targets=parse_slo("ttft_p50<1s"),
        deployment=Deployment(in_flight_batches=1),
        config=CONFIG,
    )
    row = evaluate(question, Candidate(card="L4", count=1, cost=1.0, host_bytes=4096))
    assert not row.serves
    assert row.why_not
