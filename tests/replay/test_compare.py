"""Placements and policies side by side, at shares of an unbounded cache."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import answer
from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import (
    EngineConfig,
    ManagerName,
    ReplayError,
    Result,
    RustOptions,
    block_cache,
    model_cache,
    replay,
    request_limits,
)
from hybrid_blocks.tools.replay import run as run_module
from hybrid_blocks.tools.replay.cache import SharedCache, read_shares
from hybrid_blocks.tools.replay.config import RefusedRequestError
from hybrid_blocks.tools.replay.limits import LeftOut, RequestLimit
from hybrid_blocks.tools.replay.places import PlaceCount
from hybrid_blocks.tools.replay.run import Variant, compare
from hybrid_blocks.tools.trace import Trace, generate_workload, shared_prefixes
from hybrid_blocks.tools.trace.builder import TraceBuilder
from loads import generate

MODEL = "Nemotron-H-8B"
GIB = 2**30
full = pytest.mark.full
ENGINE = EngineConfig(max_num_seqs=8, watermark=0.0, reject_too_large=True)


def unbounded(trace: Trace) -> SharedCache:
    return SharedCache(trace, model_cache(MODEL, 8 * GIB, Deployment(in_flight_batches=1)))


def twice(tail: int, *, times: int = 2) -> Trace:
    """A document of 2,000 tokens, with other questions of ``tail`` tokens."""
    builder = TraceBuilder("twice")
    document = builder.fresh(2_000)
    for at in range(times):
        spans = [document, builder.fresh(tail + 8)]
        builder.add(spans, arrival=10.0 * at, prompt_tokens=2_000 + tail, output_tokens=8)
    return builder.build()


# --- places ---------------------------------------------------------------------


def counted(trace: Trace, placement: str, gib: int = 8) -> tuple[Result, dict[str, PlaceCount]]:
    cache = model_cache(MODEL, gib * GIB, Deployment(in_flight_batches=1))
    result, _ = replay(
        trace,
        manager_name=ManagerName.RUST,
        cache=cache,
        config=ENGINE,
        rust=RustOptions(placement=CheckpointPolicy(placement)),
        prefixes=shared_prefixes(trace, cache.geometry.hash_block_size),
    )
    return result, {count.place: count for count in result.places or ()}


def test_a_checkpoint_before_the_question_is_written_and_used_at_its_place() -> None:
    result, places = counted(twice(100, times=3), "fixed:112")
    found = places["64 to 256"]
    assert (found.written, found.used, found.uses, found.dropped) == (1, 1, 2, 0)
    assert result.hit_tokens == 2 * 1_984


def test_a_checkpoint_in_the_question_is_used_by_nobody() -> None:
    _, places = counted(twice(500, times=2), "fixed:112")
    found = places["64 to 256"]
    assert (found.written, found.used) == (2, 0)
    # The second prompt leaves the first where no state is: it leaves one for the third.
    assert places["shared prefix"].written == 1


def test_what_memory_has_no_room_for_is_counted_as_dropped() -> None:
    trace = generate("single", num_requests=120)
    _, roomy = counted(trace, "fixed:128", gib=500)
    _, tight = counted(trace, "fixed:128", gib=4)
    assert sum(count.dropped for count in roomy.values()) < 10
    assert sum(count.dropped for count in tight.values()) > 60
    for count in tight.values():
        assert count.used <= count.written
        assert count.dropped <= count.written


def test_counting_changes_nothing_and_every_resumption_has_a_place() -> None:
    trace = generate_workload("tools", num_requests=150)
    result, places = counted(trace, "fixed:128", gib=30)
    plain, _ = replay(
        trace,
        manager_name=ManagerName.RUST,
        cache=model_cache(MODEL, 30 * GIB, Deployment(in_flight_batches=1)),
        config=ENGINE,
        rust=RustOptions(placement=CheckpointPolicy("fixed:128")),
    )
    assert plain.places is None
    assert plain.hit_tokens == result.hit_tokens
    assert plain.forks == result.forks
    geometry = model_cache(MODEL, GIB, Deployment(in_flight_batches=1)).geometry
    states = sum(group.kind == "state" for group in geometry.groups)
    assert sum(count.uses for count in places.values()) * states == result.forks


# --- shares ---------------------------------------------------------------------


def test_an_unbounded_cache_is_measured_from_the_trace_alone() -> None:
    trace = twice(500)
    found = unbounded(trace)
    geometry = found.at(1.0).geometry
    size = geometry.hash_block_size
    # 2,508 - 1 tokens of the first; of the second, what comes after the document.
    blocks = 2_507 // size + 2_507 // size - 2_000 // size
    assert found.sharing.unique_blocks == blocks
    # A state at the end of both prompts and where the second leaves the first.
    assert found.sharing.resume_points == 3
    tokens = sum(g.block_bytes * size // g.block_tokens for g in geometry.groups if g.grows)
    states = sum(g.block_bytes for g in geometry.groups if g.kind == "state")
    assert found.unbounded_bytes == blocks * tokens + 3 * states


def test_hits_rise_with_the_share_and_none_is_lost_in_an_unbounded_cache() -> None:
    trace = generate_workload("tools", num_requests=150)
    caches = unbounded(trace)
    shares = read_shares("5%,20%,100%,unbounded")
    rates = [compare(trace, caches.at(it), [Variant()], ENGINE)[0][0] for it in shares]
    assert [r.hit_rate for r in rates] == sorted(r.hit_rate for r in rates)
    assert rates[0].hit_rate < rates[-1].hit_rate
    assert rates[-1].limit_attention_evicted == 0


@pytest.mark.parametrize("text", ["5", "0%", "-3%", "x%", "5%,", "inf%", "nan%"])
def test_shares_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ReplayError, match="is no share of an unbounded cache"):
        read_shares(text)


def test_a_share_needs_a_model() -> None:
    with pytest.raises(ReplayError, match="--share needs a model"):
        SharedCache(twice(10), block_cache(100, 16))


# --- placements -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["somewhere", "fixed", "fixed:", "fixed:x", "fixed:1+", "every:1+2", "learned:3", ""]
)
def test_placements_that_are_not_known_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no placement; known are learned, fixed:N"):
        CheckpointPolicy(text)


def test_the_placement_decides_what_is_hit() -> None:
    """A distance is at most an eighth of the prompt: 275 of 2,200 tokens."""
    trace = twice(200)
    cache = unbounded(trace).at(float("inf"))
    names = ("none", "fixed:112", "fixed:512", "fixed:112+512", "geometric")
    runs = compare(trace, cache, [Variant(placement=name) for name in names], ENGINE)
    hits = [result.hit_tokens for result, _ in runs]
    assert hits[:3] == [0, 0, 1_920]
    assert min(hits[3:]) > 1_000


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=full) for seed in (1, 2))])
def test_what_clients_say_of_their_sessions_reaches_the_manager(seed: int) -> None:
    """Conversations that are over give way to those that go on."""
    trace = generate_workload("conversations", seed, 600)
    cache = unbounded(trace).at(0.1)
    variants = [Variant(signal=signal) for signal in (0.0, None, 1.0)]
    wrong, none, right = (result for result, _ in compare(trace, cache, variants, ENGINE))
    assert right.hit_tokens > 1.02 * none.hit_tokens
    assert right.hit_tokens > 1.02 * wrong.hit_tokens
    assert right.variant == "rust learned signal 1"


# --- the same requests ----------------------------------------------------------


def test_what_one_manager_refuses_though_its_limit_allows_it_is_left_out_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A manager that claims to hold more than it does is found out when it runs."""
    trace = generate("single", num_requests=40)
    longest = int(trace.total_tokens.argmax())
    cache = model_cache(MODEL, 64 * GIB, Deployment(in_flight_batches=1))

    def refusing(*arguments: Any, refused: Any = (), **options: Any) -> Any:
        is_picky = options["rust"].placement == CheckpointPolicy("none")
        if is_picky and longest not in {refusal.request for refusal in refused}:
            raise RefusedRequestError(longest, "it does not fit after all")
        return replay(*arguments, refused=refused, **options)

    monkeypatch.setattr(run_module, "replay", refusing)
    variants = [Variant(), Variant(placement="none")]
    runs = compare(trace, cache, variants, ENGINE)
    length = int(trace.total_tokens[longest])
    for result, timeline in runs:
        assert (result.requests, result.rejected_requests) == (39, 1)
        assert longest not in timeline.admitted
        assert result.left_out == (
            LeftOut(manager="rust", max_tokens=None, requests=1, shortest=length, longest=length),
        )
    with pytest.raises(RefusedRequestError, match="after all"):
        compare(trace, cache, variants, EngineConfig())


@pytest.mark.vllm
def test_a_request_of_exactly_its_limit_runs_in_every_manager() -> None:
    for model, gib in (("Qwen3.5-27B", 6), (MODEL, 2), ("Granite-4.0-Micro", 1)):
        cache = model_cache(model, gib * GIB, Deployment(in_flight_batches=1))
        for manager in ManagerName:
            config = EngineConfig(reject_too_large=True)
            (limit,) = request_limits([manager], cache, config)
            assert isinstance(limit, RequestLimit)
            builder = TraceBuilder("longest")
            for tokens in (limit.max_tokens + 1, limit.max_tokens + 2):
                spans = [builder.fresh(tokens)]
                builder.add(spans, arrival=0.0, prompt_tokens=tokens - 1, output_tokens=1)
            runs = compare(builder.build(), cache, [Variant(manager=manager)], config)
            assert (runs[0][0].requests, runs[0][0].rejected_requests) == (1, 1)


# --- the command ----------------------------------------------------------------


def test_the_command_compares_at_shares_in_tables_and_json(tmp_path: Path) -> None:
    written = tmp_path / "hits.json"
    output = answer(
        "replay",
        *("--workload", "documents", "--limit", 60, "--model", MODEL, "--max-num-seqs", 8),
        *("--placement", "fixed:128,fixed:1024"),
        *("--share", "10%,unbounded", "--json", written),
    )
    texts = ("of attention's", "each GiB more", " points", "ended: no checkpoint", "10%")
    for text in (*texts, "written / used / dropped"):
        assert text in output
    rows = json.loads(written.read_bytes())
    assert [(r["share"], r["placement"]) for r in rows] == [
        (it, placement) for it in ("10%", "unbounded") for placement in ("fixed:128", "fixed:1024")
    ]
    assert all(row["places"] and row["sequential_hit_rate"] for row in rows)
    assert len({row["requests"] for row in rows}) == 1
    assert rows[0]["memory_bytes"] < rows[-1]["memory_bytes"]
