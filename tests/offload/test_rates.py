"""Rates are measured, and what is read follows them."""

import time
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.metrics import OFFLOAD_PREFIX
from hybrid_blocks.offload import tiers
from hybrid_blocks.offload.manager import promotions
from hybrid_blocks.offload.tiers import queue, rates
from hybrid_blocks.offload.tiers.queue import Chunks
from hybrid_blocks.offload.tiers.rates import RETRY_AFTER, ComputeRate, ReadRate
from scheduled import TOKENS, Engine, Request, disk_at, leave, objects_at, results, wanted
from vllm.v1.kv_offload.base import LookupResult

NUM_CHUNKS = 8


def read(rate: ReadRate, num_bytes: int, at: float, seconds: float) -> None:
    begun = rate.begin(num_bytes, at)
    begun.ended = at + seconds
    rate.end(begun, is_whole=True)


def test_latency_and_rate_are_told_apart_and_follow_what_changes() -> None:
    rate = ReadRate()
    assert rate.cost(0.0) is None
    for at in range(60):
        num_bytes = (at % 10 + 1) << 20
        read(rate, num_bytes, at, 0.01 + num_bytes / 1e9)
    latency, per_byte = rate.cost(60.0) or (0, 0)
    assert latency == pytest.approx(0.01, rel=0.1)
    assert per_byte == pytest.approx(1e-9, rel=0.1)
    for at in range(60, 120):
        num_bytes = (at % 10 + 1) << 20
        read(rate, num_bytes, at, 0.1 + num_bytes / 1e8)
    latency, per_byte = rate.cost(120.0) or (0, 0)
    assert latency == pytest.approx(0.1, rel=0.1)
    assert per_byte == pytest.approx(1e-8, rel=0.1)
    assert rate.latency == latency
    assert 0 < rate.bytes_per_second < 1e8


def test_a_read_waits_for_those_under_way() -> None:
    rate = ReadRate()
    for at in range(60):
        read(rate, 1000 * (at % 7 + 1), at, at % 7 + 1.0)
    alone = rate.cost(60.0)
    assert alone is not None
    first = rate.begin(5000, 60.0)
    second = rate.begin(1000, 60.0)
    assert second.all_bytes == 6000
    behind = rate.cost(60.0)
    assert behind is not None
    assert behind[0] - alone[0] == pytest.approx(6.0, rel=0.1)
    first.ended = second.ended = 66.0
    rate.end(first, is_whole=False)  # a failed read says nothing
    rate.end(second, is_whole=True)
    assert rate.cost(66.0) == pytest.approx(alone, rel=0.1, abs=0.1)


def test_one_read_tries_a_tier_again_after_a_pause() -> None:
    rate = ReadRate()
    read(rate, 1000, 0.0, 100.0)
    assert rate.cost(RETRY_AFTER) == pytest.approx((100.0, 0.0))
    assert rate.cost(RETRY_AFTER + 1) is None
    again = rate.begin(1000, RETRY_AFTER + 1)
    # Others do not wait for it.
    assert rate.cost(RETRY_AFTER + 1) is not None
    again.ended = RETRY_AFTER + 2
    rate.end(again, is_whole=True)
    assert rate.cost(RETRY_AFTER + 2) == pytest.approx((1.0, 0.0))


def steps(rate: ComputeRate, *ends: tuple[float, int], unfinished: set[str]) -> None:
    for end, num_tokens in ends:
        rate.advance("a", num_tokens)
        rate.end_step(end, unfinished)


def test_the_rate_of_computing_is_that_of_steps_with_prompts() -> None:
    rate, ahead = ComputeRate(), ComputeRate()
    prompt = [(float(at), 8000) for at in range(50)]
    steps(rate, *prompt, unfinished={"a"})
    assert rate.tokens_per_second == pytest.approx(8000, rel=0.01)
    # One step in which the prompt runs, and steps of its answer.
    steps(ahead, (0.0, 8000), (0.0, 0), (1.0, 0), (1.1, 0), unfinished={"a"})
    assert ahead.tokens_per_second == pytest.approx(8000)
    slow = ComputeRate()
    steps(slow, (0.0, 10), (1.0, 10), (2.0, 10), unfinished={"a"})
    assert slow.tokens_per_second is None  # hardly anything but answers
    idle = ComputeRate()
    steps(idle, (0.0, 8000), (1.0, 0), (9.0, 0), unfinished=set())
    assert idle.tokens_per_second is None  # the pause has no known length
    assert ComputeRate(500).seconds_per_token == 1 / 500


def serve(engine: Engine, request: Request) -> LookupResult:
    """Ask until there is an answer, as the scheduler does in each step, and end the request."""
    deadline = time.monotonic() + 60
    while LookupResult.RETRY in (answers := results(engine, request, wanted(request))):
        assert time.monotonic() < deadline, "the answer does not come"
        engine.end_step()
        time.sleep(0.005)
    engine.end_step(request)
    assert set(answers) in ({LookupResult.HIT}, {LookupResult.MISS})
    if answers[0] is LookupResult.HIT:
        engine.load(request, wanted(request))
    engine.manager.on_request_finished(request.context)
    return answers[0]


def chats(names: str, number: int = 0) -> list[Request]:
    return [Request(name, NUM_CHUNKS, number) for name in names]


class Clock:
    """Seconds that pass only in reads: a busy machine makes none of them slower."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (promotions, queue, tiers):
        monkeypatch.setattr(module, "time", clock)
    return clock


def slow_down(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tier: Any, seconds: list[float]
) -> list[Chunks]:
    """Let each read of a tier take what ``seconds`` holds then; return the reads."""
    read = tier._read
    reads: list[Chunks] = []

    def slowly(chunks: Chunks) -> list[bool]:
        reads.append(chunks)
        answer: list[bool] = read(chunks)
        clock.now += seconds[0]
        return answer

    monkeypatch.setattr(tier, "_read", slowly)
    return reads


def test_a_slow_store_is_passed_by_and_used_again_once_it_is_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    url = f"file://{tmp_path}"
    leave(Engine(256 * 4096, objects=objects_at(url)), *(Request(it, NUM_CHUNKS) for it in "abcde"))
    # A prompt is computed in 0.2 s.
    computing = ComputeRate(NUM_CHUNKS * TOKENS / 0.2)
    engine = Engine(256 * 4096, objects=objects_at(url), computing=computing)
    seconds = [0.5]
    slow_down(monkeypatch, clock, engine.below.objects, seconds)
    a, b, c, d, _ = chats("abcde", 1)
    assert serve(engine, a) is LookupResult.HIT  # nothing was measured
    read_bytes = engine.manager.counts.promoted_bytes
    assert serve(engine, b) is LookupResult.MISS
    assert engine.manager.counts.promoted_bytes == read_bytes
    assert engine.manager.counts.passed_by_tokens == NUM_CHUNKS * TOKENS
    # Chunks in host memory are used all the same.
    assert serve(engine, Request("a", NUM_CHUNKS, 2)) is LookupResult.HIT
    seconds[0] = 0.0
    assert serve(engine, Request("b", NUM_CHUNKS, 2)) is LookupResult.MISS
    monkeypatch.setattr(rates, "RETRY_AFTER", -1.0)  # a minute later
    assert serve(engine, c) is LookupResult.HIT
    monkeypatch.setattr(rates, "RETRY_AFTER", RETRY_AFTER)
    assert serve(engine, d) is LookupResult.HIT
    assert engine.manager.counts.passed_by_tokens == 2 * NUM_CHUNKS * TOKENS
    stats = engine.manager.get_stats()
    assert stats is not None
    figures = stats.reduce()
    assert figures[f"{OFFLOAD_PREFIX}passed_by_tokens"] == 2 * NUM_CHUNKS * TOKENS
    assert figures[f"{OFFLOAD_PREFIX}object_read_bytes_per_second"] > 0
    assert figures[f"{OFFLOAD_PREFIX}object_read_latency_seconds"] < 0.2
    assert figures[f"{OFFLOAD_PREFIX}disk_read_bytes_per_second"] == 0
    assert figures[f"{OFFLOAD_PREFIX}prompt_tokens_per_second"] == pytest.approx(640)


def test_without_a_rate_of_computing_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    url = f"file://{tmp_path}"
    leave(Engine(256 * 4096, objects=objects_at(url)), *(Request(it, NUM_CHUNKS) for it in "ab"))
    engine = Engine(256 * 4096, objects=objects_at(url), computing=ComputeRate())
    slow_down(monkeypatch, clock, engine.below.objects, [0.3])
    for chat in "ab":
        assert serve(engine, Request(chat, NUM_CHUNKS, 1)) is LookupResult.HIT
    assert engine.manager.counts.passed_by_tokens == 0


def test_what_both_tiers_hold_comes_from_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    disk, url = str(tmp_path / "disk"), f"file://{tmp_path}/objects"
    (tmp_path / "disk").mkdir()
    (tmp_path / "objects").mkdir()
    leave(Engine(2**20, disk_at(disk), objects_at(url)), *(Request(it, NUM_CHUNKS) for it in "ab"))
    leave(
        Engine(256 * 4096, objects=objects_at(url)), *(Request(chat, NUM_CHUNKS) for chat in "c")
    )  # so that both are measured
    engine = Engine(256 * 4096, disk_at(disk), objects_at(url), computing=ComputeRate())
    from_disk = slow_down(monkeypatch, clock, engine.below.disk, [0.2])
    from_objects = slow_down(monkeypatch, clock, engine.below.objects, [0.0])
    for chat in "acb":
        assert serve(engine, Request(chat, NUM_CHUNKS, 1)) is LookupResult.HIT
    # The last one lies in both.
    assert (len(from_disk), len(from_objects)) == (1, 2)
