"""Traces that people have: agents' raw files, hashes of single blocks, arrivals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_blocks.tools.trace import DamagedLineError, Trace, read_trace

SIX = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
EIGHT = SIX.replace("Timestamp,", "Timestamp,Session ID,Elapsed time,")

WEKA: dict[str, Any] = {
    "id": "a",
    "models": ["m"],
    "block_size": 64,
    "tool_tokens": 64,
    "system_tokens": 0,
    "requests": [
        {"t": 0.0, "type": "s", "model": "m", "in": 130, "out": 10, "hash_ids": [1, 2]},
        {
            "t": 1.0,
            "type": "subagent",
            "tool_tokens": 0,
            "requests": [{"t": 1.0, "type": "n", "in": 70, "out": 3, "hash_ids": [1]}],
        },
        {"t": 9.0, "type": "n", "in": 200, "out": 4, "hash_ids": [1, 2, 7], "think_time": 2.5},
        {"t": 12.0, "type": "n", "in": 129, "out": 1, "hash_ids": [1, 9]},
    ],
}
BAILIAN: list[dict[str, Any]] = [
    {"chat_id": 5, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 40, "output_length": 2,
     "type": "text", "turn": 1, "hash_ids": [10, 11, 12]},
    {"chat_id": 6, "parent_chat_id": 5, "timestamp": 70, "input_length": 64, "output_length": 0,
     "type": "text", "turn": 2, "hash_ids": [10, 11, 99, 12]},
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 80, "input_length": 50, "output_length": 1,
     "type": "text", "turn": 1, "hash_ids": [11, 10, 12]},
]  # fmt: skip
BURSTGPT = f"{SIX}\n5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


SAMPLES = {
    "bailian": lines(BAILIAN),
    "burstgpt": BURSTGPT,
}


def read(tmp_path: Path, text: str, name: str = "auto") -> Trace:
    path = tmp_path / "trace"
    path.write_text(text)
    return read_trace(path, name)


def tokens(trace: Trace, request: int) -> list[int]:
    ids: list[int] = trace.token_ids(request).tolist()
    return ids


def common(trace: Trace, one: int, other: int) -> int:
    pairs = zip(tokens(trace, one), tokens(trace, other), strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), -1)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_known_by_its_first_line(tmp_path: Path, name: str) -> None:
    detected, named = read(tmp_path, SAMPLES[name]), read(tmp_path, SAMPLES[name], name)
    np.testing.assert_array_equal(detected.arrival, named.arrival)
    assert [tokens(detected, at) for at in range(len(detected))] == [
        tokens(named, at) for at in range(len(named))
    ]


def test_raw_lists_of_ids_are_read_as_their_delta_coded_form(tmp_path: Path) -> None:
    coded = json.loads(json.dumps(WEKA))
    for turn, keep, new in (
        (coded["requests"][0], 0, [1, 2]),
        (coded["requests"][1]["requests"][0], 0, [1]),
        (coded["requests"][2], 2, [7]),
        (coded["requests"][3], 1, [9]),
    ):
        del turn["hash_ids"]
        turn |= {"keep": keep, "new": new}
    raw, delta = read(tmp_path, lines([WEKA])), read(tmp_path, lines([coded]))
    assert [tokens(raw, at) for at in range(4)] == [tokens(delta, at) for at in range(4)]
    np.testing.assert_array_equal(raw.follows, delta.follows)
    np.testing.assert_array_equal(raw.session, delta.session)
    assert common(raw, 0, 3) == 64


def test_a_block_behind_another_prefix_is_another_block(tmp_path: Path) -> None:
    trace = read(tmp_path, lines(BAILIAN))
    assert common(trace, 0, 1) == 32
    assert common(trace, 0, 2) == common(trace, 1, 2) == 0
    first = {*tokens(trace, 0)[:40], *tokens(trace, 1)[:64]}
    assert not first & {*tokens(trace, 2)[:50]}
    assert trace.session.tolist() == [0, 0, 1]
    assert trace.arrival.tolist() == [0, 8.5, 18.5]


def test_tokens_behind_the_last_hash_are_unique(tmp_path: Path) -> None:
    trace = read(tmp_path, lines(BAILIAN))
    assert trace.prompt_tokens.tolist() == [40, 64, 50]
    assert trace.output_tokens.tolist() == [2, 1, 1]
    assert not {*tokens(trace, 2)[48:]} & {*tokens(trace, 0), *tokens(trace, 1)}


def test_arrivals_and_lengths_share_nothing(tmp_path: Path) -> None:
    trace = read(tmp_path, BURSTGPT)
    assert trace.arrival.tolist() == [0, 40]
    assert trace.prompt_tokens.tolist() == [472, 1087]
    assert trace.output_tokens.tolist() == [18, 1]
    assert trace.session.tolist() == [-1, -1]
    rows = "1,u,0.5,ChatGPT,10,2,12,Conversation log\n2,v,0.5,ChatGPT,10,2,12,API log\n"
    rows += "3,u,0.5,ChatGPT,10,2,12,Conversation log\n"
    assert read(tmp_path, f"{EIGHT}\n{rows}").session.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "damaged", "reason"),
    [
        ("conversations", lines([WEKA]).replace("[1, 2]", "[1]", 1), "has 1 ids"),
        ("conversations", lines([WEKA]).replace('"block_size": 64', '"block_size": 32'), "is 32"),
        ("conversations", '{"id": "a"}', "requests"),
        ("bailian", SAMPLES["bailian"].replace("[10, 11, 12]", "[10]"), "fill 2 hash_ids"),
        ("bailian", SAMPLES["bailian"].replace("61.5", "-1"), "timestamp"),
        ("burstgpt", "5,ChatGPT,472", "6 or 8 fields"),
        ("burstgpt", "5,ChatGPT,0,18,18,API log", "Request tokens is 0"),
        ("burstgpt", "nan,ChatGPT,4,18,18,API log", "no time"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, name: str, damaged: str, reason: str) -> None:
    path = tmp_path / "trace"
    path.write_text(damaged)
    with pytest.raises(DamagedLineError, match=reason) as raised:
        read_trace(path, name)
    assert raised.value.line == 1
    good = SAMPLES.get(name, lines([WEKA])).splitlines()[-1]
    path.write_text(damaged.splitlines()[0] + "\n" + good + "\n")
    assert read_trace(path, name, "skip").skipped == (1,)
