import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_blocks.tools.trace import DamagedLineError, Trace, read_trace
from hybrid_blocks.tools.trace.conversations import CONVERSATION_GAP


def turn(t: float, tokens: int, keep: int, new: list[Any], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": tokens, "out": 20, "keep": keep, "new": new} | more


def read(path: Path, *conversations: list[dict[str, Any]], **more: Any) -> Trace:
    with path.open("w") as file:
        for number, requests in enumerate(conversations):
            file.write(json.dumps({"id": str(number), "requests": requests} | more) + "\n")
    return read_trace(path, "conversations")


def shared_tokens(trace: Trace, left: int, right: int) -> int:
    """Length of the common prefix of two requests' prompt and output."""
    a, b = trace.token_ids(left), trace.token_ids(right)
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.jsonl"


def test_kept_ids_are_a_shared_prefix_and_new_ids_are_not(path: Path) -> None:
    trace = read(path, [turn(0, 256, 0, [[1, 4]]), turn(5, 320, 2, [[5, 7]])])
    assert shared_tokens(trace, 0, 1) == 128


def test_an_output_is_what_the_next_prompt_holds_in_its_place(path: Path) -> None:
    trace = read(path, [turn(0, 150, 0, [1, 2]), turn(5, 256, 2, [[3, 4]])])
    assert trace.output_tokens[0] == 20
    assert shared_tokens(trace, 0, 1) == 150 + 20


def test_an_output_that_the_next_prompt_has_no_room_for_is_unique_from_there(path: Path) -> None:
    trace = read(path, [turn(0, 150, 0, [1, 2], out=90), turn(5, 192, 2, [3])])
    assert shared_tokens(trace, 0, 1) == 192
    assert len(trace.token_ids(0)) == 240


def test_a_prompt_that_drops_a_block_shares_no_tail(path: Path) -> None:
    trace = read(path, [turn(0, 150, 0, [1, 2]), turn(5, 256, 1, [[3, 5]])])
    assert shared_tokens(trace, 0, 1) == 64


def test_turns_follow_each_other_after_the_recorded_pause(path: Path) -> None:
    trace = read(
        path,
        [
            turn(2, 64, 0, [1], api_time=3.0),
            turn(9, 64, 1, []),
            turn(20, 64, 1, [], think_time=1.5),
            turn(19, 64, 1, []),
        ],
    )
    assert trace.follows.tolist() == [-1, 0, 1, 2]
    assert trace.arrival.tolist() == [0, 4, 1.5, 0]


def test_conversations_start_one_gap_apart_and_share_nothing_by_default(path: Path) -> None:
    conversation = [turn(1, 128, 0, [1, 2])]
    trace = read(path, conversation, conversation, conversation)
    assert trace.arrival.tolist() == [0, CONVERSATION_GAP, 2 * CONVERSATION_GAP]
    assert shared_tokens(trace, 0, 1) == 0


def test_equal_tool_and_system_prompts_are_shared_across_conversations(path: Path) -> None:
    conversation = [turn(1, 256, 0, [[1, 4]]), turn(2, 320, 4, [5])]
    trace = read(path, conversation, conversation, tool_tokens=100, system_tokens=50)
    assert shared_tokens(trace, 0, 2) == 128
    assert shared_tokens(trace, 1, 3) == 128
    assert shared_tokens(trace, 0, 1) == 256 + 20


def test_a_subagent_runs_beside_the_list_that_called_it(path: Path) -> None:
    turns = [turn(0, 64, 0, [90]), turn(4, 128, 1, [91])]
    subagent = {"t": 12.0, "type": "subagent", "requests": turns}
    trace = read(path, [turn(0, 64, 0, [1], api_time=2.0), subagent, turn(30, 128, 1, [2])])

    assert trace.follows.tolist() == [-1, 0, 1, 0]
    assert trace.arrival.tolist() == [0, 10, 4, 28]
    assert shared_tokens(trace, 0, 1) == 0
    assert shared_tokens(trace, 1, 2) == 64 + 20
    assert shared_tokens(trace, 0, 3) == 64 + 20


def test_a_limit_keeps_what_requests_follow(path: Path) -> None:
    trace = read(path, [turn(0, 64, 0, [1]), turn(5, 128, 1, [2]), turn(9, 192, 2, [3])])
    head = trace.head(2)
    assert len(head) == 2
    assert head.follows.tolist() == [-1, 0]
    np.testing.assert_array_equal(head.token_ids(1), trace.token_ids(1))
    assert len(trace.head(99)) == 3
    with pytest.raises(ValueError, match="limit is 0"):
        trace.head(0)


def test_subagents_that_are_nested_without_an_end_are_damage(path: Path) -> None:
    nested: list[dict[str, Any]] = [turn(0, 64, 0, [1])]
    for _ in range(32):
        nested = [{"t": 0, "type": "subagent", "requests": nested}]
    assert len(read(path, nested)) == 1
    with pytest.raises(DamagedLineError, match="subagents are nested more than 32 deep"):
        read(path, [{"t": 0, "type": "subagent", "requests": nested}])
