"""Hybrid models through the engine: memory, hits, policies, and vLLM's own manager beside ours."""

from functools import cache as remember
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    ReplayError,
    Result,
    RustOptions,
    VirtualEngine,
    VllmOptions,
    make_manager,
    model_cache,
    replay,
)
from hybrid_blocks.tools.replay.cache import LiveBytes
from hybrid_blocks.tools.replay.manager import Counts, Handles
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.builder import TraceBuilder

EIGHT: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("Qwen3.5-27B", 24, {}),
    ("Qwen3.5-27B", 24, {"num_speculative_tokens": 2}),
    ("Qwen3.5-35B-A3B", 12, {"kv_cache_dtype": "fp8"}),
    ("Nemotron-H-8B", 16, {}),
    ("Granite-4.0-H-Small", 16, {}),
    ("Falcon-H1-7B", 16, {}),
    ("LFM2-1.2B", 3, {}),
    ("gpt-oss-20b", 10, {}),
    ("Gemma-3-27B", 24, {}),
)


def made(model: str, gib: float, **options: Any) -> Cache:
    deployment = Deployment(in_flight_batches=1, max_num_seqs=1024, **options)
    return model_cache(model, int(gib * 2**30), deployment)


@remember
def chat(num_requests: int = 500, seed: int = 3) -> Trace:
    """Lengths like those of conversations, all waiting from the start, nothing shared."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(6.6, 1.0, num_requests), 20, 6000)
    return waiting("chat", prompts, np.clip(rng.lognormal(5.0, 0.8, num_requests), 5, 800))


@remember
def code(num_requests: int = 600, seed: int = 6) -> Trace:
    """Long prompts and short answers, as those of code completion; nothing shared."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(7.3, 0.9, num_requests), 20, 7400)
    return waiting("code", prompts, np.clip(rng.lognormal(3.0, 0.9, num_requests), 5, 400))


def waiting(name: str, prompts: npt.NDArray[np.float64], outputs: npt.NDArray[np.float64]) -> Trace:
    """Make requests of these lengths, all waiting from the start, nothing shared."""
    builder = TraceBuilder(name)
    lengths = zip(prompts.astype(int).tolist(), outputs.astype(int).tolist(), strict=True)
    for prompt, output in lengths:
        span = builder.fresh(prompt + output)
        builder.add([span], arrival=0, prompt_tokens=prompt, output_tokens=output)
    return builder.build()


def turns(num_conversations: int, num_turns: int, *, shared: int = 256) -> Trace:
    """Conversations that come back, one after another, under one system prompt."""
    builder = TraceBuilder("turns")
    system = builder.fresh(shared)
    leaders: dict[int, int] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    for _ in range(num_turns):
        for conversation in range(num_conversations):
            history = spans.setdefault(conversation, [system])
            prompt = [*history, builder.fresh(800)]
            answer = builder.fresh(49)
            leader = leaders.get(conversation, -1)
            leaders[conversation] = builder.add(
                [*prompt, answer],
                arrival=5.0 if leader >= 0 else float(conversation),
                prompt_tokens=sum(count for _, count in prompt),
                output_tokens=49,
                follows=leader,
            )
            spans[conversation] = [*prompt, answer]
    return builder.build()


def run(trace: Trace, cache: Cache, name: str = "rust", **options: Any) -> Result:
    config = EngineConfig(max_num_seqs=options.pop("max_num_seqs", 1024), watermark=0.0)
    return replay(trace, manager_name=ManagerName(name), cache=cache, config=config, **options)[0]


@pytest.mark.parametrize(("model", "gib", "options"), EIGHT)
def test_at_full_load_hardly_a_reserved_byte_is_not_needed(
    model: str, gib: float, options: dict[str, Any]
) -> None:
    result = run(chat(), made(model, gib, **options))
    assert result.full_load_steps > 100
    assert result.memory_efficiency is not None
    assert result.concurrency_bound is not None
    assert 0.97 <= result.memory_efficiency <= 1
    assert result.reserved_for is not None
    assert sum(result.reserved_for.values()) == pytest.approx(1)
    # No request shares a prefix with another one.
    assert result.reserved_for["needed"] == pytest.approx(result.memory_efficiency, abs=2e-4)
    assert result.peak_running >= 0.97 * result.concurrency_bound
    assert result.requests == 500
    if model in {"gpt-oss-20b", "Gemma-3-27B"}:  # windows give back only in the next step
        assert result.needless_waits < 0.05 * result.full_load_steps


def test_short_answers_leave_little_of_the_memory_to_blocks_beside_live_ones() -> None:
    result = run(code(), made("Qwen3.5-27B", 24))
    assert result.full_load_steps > 20
    assert result.memory_efficiency is not None
    assert result.reserved_for is not None
    assert result.memory_efficiency >= 0.97
    named = {part for part, share in result.reserved_for.items() if share > 0.001}
    assert named <= {"needed", "unfilled", "cached", "free", "padding"}


def test_attention_and_states_fill_the_memory_together() -> None:
    builder = TraceBuilder("mixed")
    for index in range(300):
        if index % 100 == 50:
            long = builder.fresh(40_050)
            builder.add([long], arrival=0, prompt_tokens=40_000, output_tokens=50)
        builder.add([builder.fresh(300)], arrival=0, prompt_tokens=200, output_tokens=100)
    cache = made("Qwen3.5-27B", 8)
    manager = make_manager(ManagerName.RUST, cache, EngineConfig(watermark=0.0))
    engine = VirtualEngine(builder.build(), manager, cache, EngineConfig(watermark=0.0))
    engine.run()
    assert engine.full_load.steps > 100
    assert engine.full_load.memory_efficiency is not None
    # Blocks never move, as in vLLM: what that costs is counted.
    assert engine.full_load.memory_efficiency >= 0.96
    assert 0 < engine.full_load.needless_waits < engine.full_load.steps / 2
    assert engine.counters.finished == 303


def test_a_manager_that_refuses_with_room_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(max_num_seqs=1024, watermark=0.0)
    cache = made("gpt-oss-20b", 10)
    manager = make_manager(ManagerName.RUST, cache, config)
    running, allocate, free = set[int](), manager.allocate, manager.free

    def allocate_alone(handles: Handles, counts: Counts) -> int:
        if running - set(handles.tolist()):
            return 0
        served = allocate(handles, counts)
        running.update(handles[:served].tolist())
        return served

    def free_and_forget(handles: Handles) -> None:
        running.difference_update(handles.tolist())
        free(handles)

    monkeypatch.setattr(manager, "allocate", allocate_alone)
    monkeypatch.setattr(manager, "free", free_and_forget)
    engine = VirtualEngine(chat(20), manager, cache, config)
    engine.run()
    assert engine.counters.peak_running == 1
    assert engine.full_load.needless_waits == engine.full_load.steps > 100


def test_live_bytes_of_a_batch_are_the_sum_over_its_requests() -> None:
    for model in ("Qwen3.5-27B", "gpt-oss-20b", "Llama-4-Scout-17B-16E"):
        geometry = made(model, 24).geometry
        lengths = np.array([1, 15, 16, 127, 128, 129, 8191, 8192, 8193, 50_000])
        single = sum(geometry.live_bytes(length) for length in lengths.tolist())
        assert LiveBytes(geometry).of(lengths) == pytest.approx(single, abs=len(lengths))


def test_a_conversation_goes_on_from_its_state_and_hits_are_counted_by_what_ends_them() -> None:
    trace = turns(4, 5)
    result = run(trace, made("Qwen3.5-27B", 24), max_num_seqs=8)
    assert result.checkpoints is not None
    assert result.forks is not None
    assert result.checkpoints > 0
    assert result.forks > 0
    assert result.hit_rate > 0.6
    limits = [
        result.limit_complete,
        result.limit_unseen,
        result.limit_attention_evicted,
        result.limit_window_evicted,
        result.limit_no_checkpoint,
        result.limit_alignment,
    ]
    assert sum(limit or 0 for limit in limits) == len(trace)
    assert (result.limit_no_checkpoint or 0) > 0
    assert result.recompute_flops_saved is not None
    assert result.recompute_flops_saved > 2 * 27e9 * result.hit_tokens


def test_checkpoints_in_fewer_bytes_stay_until_their_conversations_come_back() -> None:
    trace, cache = turns(16, 5), made("Nemotron-H-8B", 2)
    policies = [CheckpointPolicy(format=kept) for kept in ("full", "bf16", "int8")]
    hits = [run(trace, cache, rust=RustOptions(placement=it)).hit_tokens for it in policies]
    assert hits[1] > 2 * hits[0] > 0
    assert hits[2] > 3 * hits[0]


@pytest.mark.vllm
@pytest.mark.parametrize("options", [EIGHT[0], EIGHT[1], EIGHT[3], EIGHT[7]], ids=lambda o: o[0])
def test_vllm_runs_the_trace_and_packs_no_better(options: tuple[str, int, dict[str, Any]]) -> None:
    model, gib, deployed = options
    trace, cache = chat(150), made(model, gib / 4, **deployed)
    rust, vllm = run(trace, cache), run(trace, cache, "vllm")
    for result in (rust, vllm):
        assert result.requests == 150
        assert result.output_tokens == trace.output_tokens.sum()
    assert rust.memory_efficiency is not None
    assert vllm.memory_efficiency is not None
    assert vllm.memory_efficiency <= rust.memory_efficiency
    assert vllm.peak_running <= rust.peak_running
    assert vllm.checkpoints is None


@pytest.mark.vllm
def test_vllm_hits_where_it_kept_a_state() -> None:
    trace, cache = turns(3, 4), made("Nemotron-H-8B", 16)
    dense = run(trace, cache, "vllm", vllm=VllmOptions(retention=None))
    default = run(trace, cache, "vllm")
    ours = run(trace, cache)
    assert 0 < default.hit_tokens <= dense.hit_tokens
    assert ours.hit_tokens > dense.hit_tokens


def test_managers_say_what_they_cannot_do() -> None:
    without = Cache(geometry=made("Qwen3.5-27B", 8).geometry)
    with pytest.raises(ReplayError, match="give --model and --memory"):
        make_manager(ManagerName.VLLM, without, EngineConfig())


def test_a_request_that_takes_all_memory_does_without_a_state_to_go_on_from() -> None:
    cache = made("Qwen3.5-27B", 4)
    config = EngineConfig(max_num_batched_tokens=512)
    room = make_manager(ManagerName.RUST, cache, config).max_request_tokens
    states = [group for group in cache.geometry.groups if group.kind == "state"]
    full = next(group for group in cache.geometry.groups if group.kind == "full")
    # A request that resumes holds the checkpoint beside its own state for a step: both do not fit.
    first = room - len(states) * full.blocks_per_slab * full.block_tokens - 700
    builder = TraceBuilder("one conversation")
    history = builder.fresh(room + 1)
    builder.add([history], arrival=0, prompt_tokens=first, output_tokens=4)
    builder.add([history], arrival=1e4, prompt_tokens=room - 60, output_tokens=61)
    result, _ = replay(builder.build(), manager_name=ManagerName.RUST, cache=cache, config=config)
    assert result.requests == 2
    assert result.hit_tokens == 0
