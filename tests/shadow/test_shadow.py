"""A shadow finds of each request what the engine found, whatever happens to the record."""

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import combinations, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hybrid_blocks.geometry.step_time import StepTime
from hybrid_blocks.recording.record_file import ENDINGS, RecordFile, of_engine
from hybrid_blocks.tools.replay import ReplayError
from hybrid_blocks.tools.replay.fit import fit
from hybrid_blocks.tools.shadow import publish
from hybrid_blocks.tools.shadow import shadow as module
from hybrid_blocks.tools.shadow.engine import Request
from hybrid_blocks.tools.shadow.publish import run
from hybrid_blocks.tools.shadow.shadow import Shadow
from hybrid_blocks.tools.trace.recorded import Record, split_digests
from loads import small
from written import BLOCK, digests, engines, followed, recorded, shadow_of, text

NUM_REQUESTS = 600
LONGEST_S = 5.0
"""Longer than any request takes."""


@pytest.fixture(scope="module")
def lines() -> list[Record]:
    return recorded(small(0, NUM_REQUESTS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traffic.jsonl"


def shifted(lines: Sequence[Record], seconds: float) -> list[Record]:
    return [msgspec.structs.replace(it, arrival=it.arrival + seconds) for it in lines]


def rekeyed(lines: Sequence[Record], number: int) -> list[Record]:
    """The same requests as another file has them: no digest is that of the first."""
    swap = bytes.maketrans(b"ABCDEFGH", b"BCDEFGHA")
    return [
        msgspec.structs.replace(it, blocks=it.blocks.encode().translate(swap).decode())
        for it in lines[number:]
    ]


def test_the_own_replay_finds_of_each_request_what_the_engine_found(
    path: Path, lines: list[Record]
) -> None:
    said: list[str] = []
    path.write_bytes(text(lines))
    shadow = shadow_of(said)
    followed(path, shadow)
    counts = shadow.counts
    assert counts["requests", ""] == counts["compared", ""] == NUM_REQUESTS
    assert counts["differing", ""] == counts["differing_tokens", ""] == 0
    assert counts["found_tokens", "engine"] == sum(it.found_tokens or 0 for it in lines) > 0
    assert counts["prompt_tokens", ""] == sum(it.prompt_tokens for it in lines)
    assert counts["first_token_seconds", "vllm"] == pytest.approx(
        counts["first_token_seconds", "engine"]
    )
    assert said[0] == f"follows {path}"
    assert f"vllm differs from engine: 0.0% (0 of {NUM_REQUESTS} requests)" in said[-1]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_record_followed_while_it_is_written_gives_the_same(
    tmp_path: Path, lines: list[Record], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_LAG_S", LONGEST_S)
    shadow, file = shadow_of([]), RecordFile(tmp_path, "traffic", ending)
    shadow.begin()
    for at in range(0, len(lines), 7):
        shadow.take(lines[at : at + 7])
        assert shadow.behind < LONGEST_S + 2 or not shadow.counts["compared", ""]
    assert shadow.counts["compared", ""] > NUM_REQUESTS / 3
    shadow.advance(float("inf"))
    assert (shadow.counts["compared", ""], shadow.counts["differing", ""]) == (NUM_REQUESTS, 0)
    file.write(text(lines))
    file.close()
    again = shadow_of([])
    followed(file.path, again)
    assert again.counts == shadow.counts


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_jumps_is_told_and_loses_no_request(
    path: Path, lines: list[Record], jump: float
) -> None:
    said: list[str] = []
    path.write_bytes(text([*shifted(lines[:150], 5000), *shifted(lines[150:], 5000 + jump)]))
    shadow = shadow_of(said)
    followed(path, shadow)
    told = "clock went back by 3,6" if jump < 0 else "or the clock went forward"
    assert [told in it for it in said] == [False, True, False]
    compared, unseen = shadow.counts["compared", ""], shadow.counts["left_out", "unseen"]
    assert compared + unseen == NUM_REQUESTS
    # Requests under way at the jump are out of order.
    assert unseen + shadow.counts["differing", ""] <= 16


def test_a_rotated_file_begins_again_and_what_it_cannot_know_is_left_out(
    path: Path, lines: list[Record]
) -> None:
    said: list[str] = []
    half = NUM_REQUESTS // 2
    path.write_bytes(text(lines[:half]))
    shadow = shadow_of(said)
    followed(path, shadow)
    path.write_bytes(b"")
    path.with_name("traffic.1.jsonl").write_bytes(text(rekeyed(lines, half)))
    followed(path, shadow)
    unseen = shadow.counts["left_out", "unseen"]
    assert 0 < unseen < half
    assert shadow.counts["compared", ""] == NUM_REQUESTS - unseen
    assert shadow.counts["differing", ""] <= 0.1 * half
    assert " unseen; found: engine " in said[-1]


class EndedError(Exception):
    """All that engines record was written."""


def test_records_of_two_engines_are_followed_side_by_side(
    path: Path, lines: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second engine comes later, is killed in a line, and begins again with an empty cache."""
    second, again = recorded(small(1, 200)), rekeyed(recorded(small(2, 200)), 0)
    said: list[str] = []
    shadows = {number: shadow_of(said) for number in range(2)}
    page: Any = SimpleNamespace(text="")

    def growing() -> Iterator[None]:
        one, two = path.open("ab", 0), path.with_name("traffic.engine1.jsonl")
        three = two.with_name("traffic.engine1.1.jsonl")
        for at in range(0, NUM_REQUESTS, 20):
            one.write(text(lines[at : at + 20]))
            if at == 200:
                two.write_bytes(text([*second, second[0]])[:-9])
            if at == 400:
                three.write_bytes(text(again))
            yield
        one.close()

    steps = growing()

    def grow(_: float) -> None:
        if next(steps, steps) is steps:
            raise EndedError

    monkeypatch.setattr(publish, "_POLL_S", 0.0)
    monkeypatch.setattr("time.sleep", grow)
    with pytest.raises(EndedError):
        run(path, shadows.__getitem__, page, {}, once=False)
    followed = [it.removeprefix(f"follows {path.parent}/") for it in said]
    assert followed == [
        *("traffic.jsonl", "traffic.engine1.jsonl"),
        *("the last line of the file before has no end", "traffic.engine1.1.jsonl"),
    ]
    for shadow in shadows.values():
        shadow.advance(float("inf"))
        assert shadow.counts["differing", ""] == 0
    assert [it.counts["compared", ""] for it in shadows.values()] == [NUM_REQUESTS, 400]
    assert 'requests_total{engine="0"} 600\n' in page.text
    assert 'requests_total{engine="1"} 400\n' in page.text


def test_a_file_that_holds_no_request_is_an_error_once(path: Path) -> None:
    path.write_text('{"timestamp": 0, "input_length": 6, "output_length": 4}\n')
    with pytest.raises(ReplayError, match="no line holds a request; HYBRID_BLOCKS_RECORD"):
        followed(path, shadow_of([]))
    path.write_text("")
    followed(path, shadow_of([]))


def test_the_line_of_a_minute_sums_the_engines(path: Path, lines: list[Record]) -> None:
    said: list[str] = []
    path.write_bytes(text(lines[:100]))
    path.with_name("traffic.engine3.jsonl").write_bytes(text(rekeyed(lines[:200], 0)))
    engines = run(path, lambda _: shadow_of(said), once=True)
    assert engines.keys() == {0, 3}
    assert "requests: 300; " in said[-1]
    assert "vllm differs from engine: 0.0% (0 of 300 requests)" in said[-1]
    assert [it.peaks["vllm"] for it in engines.values()] == [
        run(of_engine(path, it), lambda _: shadow_of([]), once=True)[0].peaks["vllm"]
        for it in engines
    ]


def test_lines_that_the_record_lacks_are_a_gap_and_no_difference(
    path: Path, lines: list[Record]
) -> None:
    path.write_bytes(text([*lines[:100], *lines[200:]]))
    shadow = shadow_of([])
    followed(path, shadow)
    counts = shadow.counts
    assert counts["left_out", "unseen"] > 0
    assert counts["differing_tokens", ""] < 0.05 * counts["found_tokens", "engine"]


def test_the_time_of_a_step_is_fitted_to_the_record_and_not_with_each_line(
    lines: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[int] = []

    def noted(records: list[Record], budget: int) -> StepTime:
        fitted.append(len(records))
        return fit(records, budget)

    monkeypatch.setattr(module, "fit", noted)
    shadow = Shadow(engines, "vllm", list[str]().append, is_fitted=True)
    shadow.begin()
    shadow.take(lines[:63])
    shadow.fit()
    assert fitted == []
    shadow.take(lines[63:])
    assert fitted == [64, 64, 512, 512]
    shadow.advance(float("inf"))
    assert shadow.counts["compared", ""] == NUM_REQUESTS
    assert shadow.counts["differing_tokens", ""] < 0.1 * shadow.counts["found_tokens", "engine"]


def test_a_line_that_comes_late_is_replayed_and_counted(
    lines: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_LAG_S", LONGEST_S)
    shadow = shadow_of([])
    shadow.begin()
    shadow.take(lines[1:])
    shadow.take([msgspec.structs.replace(lines[0], finished=lines[-1].arrival)])
    shadow.advance(float("inf"))
    assert shadow.counts["left_out", "late"] == 1
    assert shadow.counts["compared", ""] + shadow.counts["left_out", "unseen"] == NUM_REQUESTS


def test_a_turn_waits_for_the_answer_that_it_continues() -> None:
    """A clock that is too slow does not let a conversation's turns run side by side."""
    tokens = np.arange(400, dtype=np.int32)
    first = Record(
        number=0,
        arrival=0.0,
        block_tokens=BLOCK,
        prompt_tokens=100,
        output_tokens=100,
        blocks=digests(tokens[:200]),
        found_tokens=0,
        finished=0.1,
    )
    second = msgspec.structs.replace(
        first, arrival=0.2, prompt_tokens=300, blocks=digests(tokens), found_tokens=192
    )
    shadow = shadow_of([])
    shadow.begin()
    shadow.take([first, second])
    shadow.advance(float("inf"))
    assert shadow.counts["found_tokens", "vllm"] == 192
    assert shadow.peaks() == {"vllm": 1, "other": 1}


def test_a_replay_that_is_too_slow_for_the_load_leaves_requests_out(
    lines: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 20)
    shadow = shadow_of([])
    shadow.begin()
    for number in range(20):
        shadow.take(shifted(lines[:50], 0.5 * number))
        shadow.advance(0.5 * number)
    shadow.advance(float("inf"))
    left_out = shadow.counts["left_out", "vllm full"]
    assert 0 < left_out == 1000 - shadow.counts["compared", ""]


def test_blocks_that_are_larger_than_those_of_level_natural_are_told(lines: list[Record]) -> None:
    said: list[str] = []
    shadow = Shadow(engines, "vllm", said.append, is_fitted=False, block_tokens=BLOCK // 2)
    shadow.begin()
    shadow.take(lines)
    assert said == [
        "the record tells apart blocks of 16 tokens, and level natural blocks of 8: it would find "
        "more than is said here"
    ]


def test_requests_that_no_replay_has_room_for_are_left_out(lines: list[Record]) -> None:
    large = msgspec.structs.replace(lines[0], prompt_tokens=100_000, blocks="", found_tokens=0)
    shadow = shadow_of([])
    shadow.begin()
    shadow.take([large, *lines])
    shadow.advance(float("inf"))
    assert shadow.counts["compared", ""] == NUM_REQUESTS


def test_prompts_share_tokens_as_far_as_they_share_digests() -> None:
    requests = [Request(it, number, 0.0) for number, it in enumerate(recorded(small(1, 40)))]
    num_shared = 0
    for one, other in combinations(requests, 2):
        names = zip(*(split_digests(it.record.blocks) for it in (one, other)), strict=False)
        blocks = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], names))
        tokens = zip(one.token_ids().tolist(), other.token_ids().tolist(), strict=False)
        assert sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], tokens)) == BLOCK * blocks
        num_shared += blocks
    assert num_shared > 100


def test_memory_does_not_grow_with_the_record(lines: list[Record]) -> None:
    shadow = shadow_of([])
    shadow.begin()
    sizes = []
    tracemalloc.start()
    try:
        for number in range(10):
            shadow.take(shifted(lines[:100], 60.0 * number))
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert shadow.counts["requests", ""] == 1000
    assert shadow.counts["compared", ""] > 800
    assert max(sizes[5:]) < max(sizes[:5]) + 20_000
