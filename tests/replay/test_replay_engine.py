"""The engine in virtual time schedules, preempts and finishes as computed by hand."""

from typing import Any

import numpy as np
import pytest
from hybrid_blocks import BlockManager
from hybrid_blocks.geometry.step_time import KNOTS, StepTime
from hybrid_blocks.tools.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    ReplayError,
    RustOptions,
    VirtualEngine,
    block_cache,
    make_manager,
    replay,
)
from hybrid_blocks.tools.replay.config import RefusedRequestError
from hybrid_blocks.tools.replay.manager import Counts, Handles
from hybrid_blocks.tools.replay.managers.rust import RustManager, make_rust
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import small
from watched_manager import WatchedManager

SECONDS = StepTime(ms=(1000.0,) * len(KNOTS))
"""A second a step, whatever it computes."""


def made(*requests: tuple[int, int, float], shared: int = 0) -> Trace:
    """Requests of (prompt tokens, output tokens, arrival) that share their first tokens."""
    builder = TraceBuilder("made up")
    prefix = builder.fresh(max(shared, 1))
    for prompt, output, arrival in requests:
        own = builder.fresh(prompt + output)
        spans = [(prefix[0], shared), own] if shared else [own]
        builder.add(spans, arrival=arrival, prompt_tokens=prompt, output_tokens=output)
    return builder.build()


def watched(
    trace: Trace, num_blocks: int, config: EngineConfig, block_size: int = 16
) -> tuple[VirtualEngine, WatchedManager]:
    manager = WatchedManager(num_blocks, block_size, config)
    engine = VirtualEngine(trace, manager, block_cache(num_blocks, block_size), config)
    engine.run()
    assert manager.steps == len(engine.meter.steps)
    return engine, manager


def made_engine(
    trace: Trace,
    num_blocks: int,
    config: EngineConfig,
    block_size: int = 16,
    name: ManagerName = ManagerName.RUST,
) -> VirtualEngine:
    cache = block_cache(num_blocks, block_size)
    return VirtualEngine(trace, make_manager(name, cache, config), cache, config)


class RefusesToGoOn(RustManager):
    """A manager that weighs prompts, and has room for the first chunk of a request alone."""

    def __init__(self, core: BlockManager, cache: Cache, options: RustOptions) -> None:
        super().__init__(core, cache, options)
        self.weighs_prompts, self.steps = True, 0

    def begin_step(self) -> None:
        super().begin_step()
        self.steps += 1
        assert self.steps < 10, "the engine goes on though nothing has room"

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        return super().allocate(handles, num_new_tokens) if self.steps < 2 else 0


def test_a_long_prompt_that_runs_alone_waits_one_step_for_room() -> None:
    config = EngineConfig(max_num_batched_tokens=64, step_time=SECONDS)
    cache = block_cache(100, 16)
    manager = make_rust(cache, config, RustOptions(), RefusesToGoOn)
    engine = VirtualEngine(made((300, 2, 0.0)), manager, cache, config)
    with pytest.raises(RefusedRequestError, match="runs alone and has no room for token 300"):
        engine.run()
    assert manager.steps == 3


def assert_served(trace: Trace, engine: VirtualEngine, manager: WatchedManager) -> None:
    """Every request has exactly its tokens, and nothing is left behind."""
    assert engine.counters.finished == len(trace)
    assert engine.counters.prompt_tokens == trace.prompt_tokens.sum()
    assert engine.counters.output_tokens == trace.output_tokens.sum()
    for request in range(len(trace)):
        tokens, prompt = trace.token_ids(request), trace.prompt_tokens[request]
        assert manager.sampled[str(request)] == tokens[prompt:].tolist()
    for life in manager.lives.values():
        assert life.freed
    assert manager.num_free_blocks == manager.num_blocks


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    block_size=st.sampled_from([1, 4, 16]),
    spare_blocks=st.integers(0, 60),
    max_num_seqs=st.integers(1, 12),
    max_num_batched_tokens=st.integers(1, 200),
    watermark=st.sampled_from([0.0, 0.1]),
)
def test_every_request_finishes_with_exactly_its_tokens_and_nothing_leaks(
    seed: int, spare_blocks: int, block_size: int, **limits: Any
) -> None:
    trace = small(seed, 10)
    config = EngineConfig(**limits)
    num_blocks = -(-int(trace.total_tokens.max()) // block_size) + spare_blocks
    engine, manager = watched(trace, num_blocks, config, block_size)
    assert_served(trace, engine, manager)
    assert len(engine.meter.steps) > 0
    assert sum(life.preempted for life in manager.lives.values()) == engine.counters.preemptions


def test_the_request_admitted_last_is_preempted_and_comes_back_before_later_arrivals() -> None:
    trace = made((8, 30, 0.0), (8, 30, 0.0), (8, 2, 0.01))
    engine, manager = watched(trace, 6, EngineConfig(watermark=0.0, max_num_seqs=2), 8)
    assert [manager.lives[handle].preempted for handle in range(2)] == [0, 1]
    assert engine.counters.recomputed_tokens > 0
    assert list(manager.names.values()) == ["0", "1", "2"]
    assert_served(trace, engine, manager)


def test_equal_inputs_give_equal_replays() -> None:
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64)

    def figures() -> list[Any]:
        engine = made_engine(small(9), 120, config, block_size=4)
        engine.run()
        it = engine.timeline
        return [engine.counters, it.seconds, it.used_blocks, it.running, len(engine.meter.steps)]

    assert figures() == figures()


def test_virtual_time_is_the_sum_of_the_steps() -> None:
    second = (1000.0,) * len(KNOTS)
    step_time = StepTime(ms=second, prompt=100, decode=10, context=1, pair=1e5, chunk=500)
    config = EngineConfig(step_time=step_time)
    engine, _ = watched(made((5, 4, 2.0)), 10, config)
    prefill = 1 + 0.1 * 5 + 0.0001 * 5 * 2.5 + 0.5
    decode = 3 * (1 + 0.01) + 0.001 * (5 + 6 + 7)
    assert engine.now == pytest.approx(2.0 + prefill + decode)


def test_the_times_of_each_request_are_noted() -> None:
    config = EngineConfig(step_time=SECONDS, max_num_batched_tokens=16)
    engine, _ = watched(made((17, 4, 0.0), (4, 1, 9.5)), 20, config)
    latencies = engine.latencies
    assert latencies.arrived.tolist() == [0, 9.5]
    # The first prompt takes two steps; the last of its tokens is alone in the second.
    assert latencies.first_token.tolist() == [2, 10.5]
    assert latencies.finished.tolist() == [5, 10.5]
    assert latencies.of("ttft").tolist() == [2, 1]
    assert latencies.of("e2e").tolist() == [5, 1]
    assert latencies.of("tpot").tolist() == [1]


def test_a_request_that_arrives_joins_a_batch_that_decodes_without_delay() -> None:
    trace = made((4, 50, 0.0), (4, 2, 9.5))
    engine, _ = watched(trace, 20, EngineConfig(step_time=SECONDS))
    running = np.array(engine.timeline.running)
    seconds = np.array(engine.timeline.seconds)
    assert seconds[running == 2].tolist() == [11.0, 12.0]
    assert engine.now == 50.0


def test_a_step_in_flight_delays_the_first_token_of_requests_that_arrive() -> None:
    config = EngineConfig(step_time=SECONDS, async_scheduling=True)
    # The first finds no step in flight. The step from 10 to 11 is scheduled at 9. The last comes
    # when the one before it has finished.
    engine, _ = watched(made((4, 20, 0.0), (4, 2, 9.5), (4, 2, 30.5)), 20, config)
    assert engine.latencies.first_token.tolist() == [1, 12, 31.5]
    assert engine.latencies.finished.tolist() == [20, 13, 32.5]
    # Steps that compute prompts are no stretch of equal steps.
    config = EngineConfig(step_time=SECONDS, async_scheduling=True, max_num_batched_tokens=32)
    engine, _ = watched(made((90, 2, 0.0), (4, 2, 1.5)), 40, config)
    assert engine.latencies.first_token.tolist() == [3, 4]


def test_pool_use_is_a_mean_over_time_in_which_an_idle_engine_counts_as_empty() -> None:
    config = EngineConfig(step_time=SECONDS)
    trace, cache = made((4, 2, 0.0), (4, 2, 8.0)), block_cache(10, 4)
    result, timeline = replay(trace, manager_name=ManagerName.RUST, cache=cache, config=config)
    assert list(timeline.seconds) == [1, 2, 8, 9, 10]
    assert list(timeline.used_blocks) == [1, 2, 0, 1, 2]
    assert list(timeline.running) == [1, 1, 0, 1, 1]
    assert result.pool_use_mean == pytest.approx((1 + 2 + 0 + 1 + 2) / 10 / 10)
    assert result.blocks_used_peak == 2


def test_a_follower_arrives_after_its_leader_finished_and_the_pause() -> None:
    builder = TraceBuilder("turns")
    first = builder.add([builder.fresh(9)], arrival=0, prompt_tokens=4, output_tokens=5)
    builder.add([builder.fresh(9)], arrival=3.0, prompt_tokens=6, output_tokens=3, follows=first)
    engine, _ = watched(builder.build(), 20, EngineConfig(step_time=SECONDS))
    assert engine.now == 5 + 3 + 3
    assert engine.latencies.arrived.tolist() == [0, 5 + 3]


def test_requests_larger_than_the_pool_are_refused_before_anything_runs() -> None:
    trace = made((100, 10, 0.0), (500, 13, 1.0), (200, 10, 1.0))
    config = EngineConfig()
    with pytest.raises(ReplayError, match=r"2 of 3 requests.*160 tokens.*request 1, needs 512 to"):
        made_engine(trace, 10, config)
    made_engine(trace, 32, config).run()


def test_requests_larger_than_the_pool_can_be_left_out_and_their_followers_still_run() -> None:
    builder = TraceBuilder("made up")
    large = builder.add([builder.fresh(400)], arrival=0, prompt_tokens=390, output_tokens=10)
    builder.add([builder.fresh(20)], arrival=1, prompt_tokens=18, output_tokens=2, follows=large)
    config = EngineConfig(reject_too_large=True)
    engine = made_engine(builder.build(), 10, config)
    told: list[int] = []
    engine.run(told.append)
    assert (engine.counters.finished, engine.counters.rejected) == (1, 1)
    assert told == [1, 2]
    assert engine.now > 1


def test_an_admission_leaves_the_watermark_free_unless_nothing_runs() -> None:
    trace = made((64, 30, 0.0), (64, 30, 0.0))
    tight, _ = watched(trace, 13, EngineConfig(watermark=0.5))
    loose, _ = watched(trace, 13, EngineConfig(watermark=0.0))
    assert tight.counters.peak_running == 1
    assert loose.counters.peak_running == 2


@pytest.mark.parametrize(
    ("name", "value"), [("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("watermark", 1.0)]
)
def test_limits_outside_their_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ReplayError, match=f"{name} is {int(value)}"):
        EngineConfig(**{name: value})
