"""Host memory below the device of a replay: what requests find there, and what loads take."""

from dataclasses import replace

import numpy as np
import pytest
from command import as_json, failure
from hybrid_blocks.geometry.step_time import KNOTS, StepTime
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import Cache, EngineConfig, ManagerName, VirtualEngine, make_manager
from hybrid_blocks.tools.replay.cache import plan_cache
from hybrid_blocks.tools.replay.hosted import BYTES_A_SECOND, HostedManager
from hybrid_blocks.tools.replay.managers.rust import make_rust
from hybrid_blocks.tools.replay.run import Variant
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.builder import TraceBuilder

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
        spans, arrival = [(texts[user], prompt), builder.fresh(OUTPUT)], 2.0 * number
        builder.add(spans, arrival=arrival, prompt_tokens=prompt, output_tokens=OUTPUT)
    return builder.build()


def cache_of(model: str, memory: int, tp: int = 1) -> Cache:
    deployment = Deployment(tp=tp, in_flight_batches=1, max_num_seqs=4)
    return plan_cache(load_model(model), memory, deployment)


def over_host(
    trace: Trace, cache: Cache, config: EngineConfig
) -> tuple[VirtualEngine, HostedManager]:
    options = replace(Variant().options(trace, cache), host_bytes=LARGE)
    manager = make_rust(cache, config, options, HostedManager)
    engine = VirtualEngine(trace, manager, cache, config)
    engine.run()
    return engine, manager


def hits(engine: VirtualEngine) -> list[int]:
    return engine.timeline.hit_tokens.tolist()


@pytest.mark.parametrize("model", MODELS)
def test_a_request_finds_in_host_memory_what_a_large_device_would_hold(model: str) -> None:
    trace, small, large = turns(), cache_of(model, MODELS[model]), cache_of(model, LARGE)

    def on_device(cache: Cache) -> VirtualEngine:
        options = Variant().options(trace, cache)
        manager = make_manager(ManagerName.RUST, cache, CONFIG, rust=options)
        engine = VirtualEngine(trace, manager, cache, CONFIG)
        engine.run()
        return engine

    hosted, manager = over_host(trace, small, CONFIG)
    if any(group.kind == "state" for group in small.geometry.groups):
        # A device learns from its own hits where to keep states.
        assert sum(hits(hosted)) > 0.95 * sum(hits(on_device(large)))
    else:
        assert hits(hosted) == hits(on_device(large))
    assert sum(hits(hosted)[DISTINCT:]) > 0.8 * trace.prompt_tokens[DISTINCT:].sum()
    assert sum(hits(on_device(small))) < 0.3 * sum(hits(hosted))
    manager.check_integrity()


def test_a_load_takes_as_long_as_its_bytes() -> None:
    trace, cache = turns(2), cache_of("Phi-4", SMALL)
    config = replace(CONFIG, step_time=StepTime(ms=(5.0,) * len(KNOTS)))
    engine, _ = over_host(trace, cache, config)
    first = engine.latencies.of("ttft")
    token_bytes = sum(it.block_bytes / it.block_tokens for it in cache.geometry.groups)
    waited = np.array(hits(engine)) * token_bytes / BYTES_A_SECOND
    steps = 5e-3
    assert waited[DISTINCT:].min() > 4 * steps
    assert first == pytest.approx(waited + steps, rel=0.01)


def test_cards_load_side_by_side() -> None:
    def waits(tp: int) -> float:
        trace, cache = turns(2), cache_of("Phi-4", SMALL // tp, tp)
        engine, _ = over_host(trace, cache, CONFIG)
        assert sum(hits(engine)) > 0
        return float(np.median(engine.latencies.of("ttft")[DISTINCT:]))

    assert waits(2) < 0.7 * waits(1)


def test_the_command_shows_what_host_memory_adds() -> None:
    load = ("--workload", "conversations", "--limit", 60, "--max-num-seqs", 2)
    asked = ("replay", *load, "--model", "Granite-4.0-H-Tiny", "--memory", "400MiB")
    alone, hosted = as_json(*asked), as_json(*asked, "--host", "64GiB")
    assert alone["host_tokens"] is None
    assert hosted["host_tokens"] > 0
    assert hosted["hit_tokens"] >= alone["hit_tokens"] + hosted["host_tokens"] // 2


def test_host_memory_that_holds_no_chunk_is_refused() -> None:
    assert "chunk" in failure("replay", "--workload", "conversations", "--host", "4KiB")
