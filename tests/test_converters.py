"""The converters in `examples/convert` write what the replay reads, with what each file shares."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_blocks.tools.trace import Trace, TraceError, read_trace

CONVERT = Path(__file__).parent.parent / "examples/convert"
AIPERF: list[dict[str, Any]] = [
    {"session_id": "a", "input_length": 100, "output_length": 7, "hash_ids": [0, 1],
     "timestamp": 5},
    {"session_id": "b", "input_length": 70, "output_length": 9, "hash_ids": [0, 2], "timestamp": 9},
    {"session_id": "a", "input_length": 65, "output_length": 0, "hash_ids": [3, 4], "delay": 250.5},
    {"session_id": "a", "input_length": 3, "hash_ids": [5], "delay": 0},
]  # fmt: skip
KVCACHE_SIMULATOR: list[dict[str, Any]] = [
    {"block_size": 16, "hash_ids": ["x", 7], "input_length": 32},
    {"block_size": 16, "hash_ids": ["x", "7", -3], "input_length": 33, "output_length": 5},
    {"block_size": 16, "hash_ids": ["x", 8], "input_length": 20, "block_tokens": [12, 8]},
]
TRACELAB: list[dict[str, Any]] = [
    {"session_id": "s", "round_index": 0, "prefix_tokens": 30, "newly_append_tokens": 70,
     "output_tokens": 20, "timing_events": [{"timestamp": "2026-08-25T00:00:14Z"},
                                            {"timestamp": "2026-08-25T00:00:10Z"}]},
    {"session_id": "s", "round_index": 2, "prefix_tokens": 64, "newly_append_tokens": 5,
     "output_tokens": 1, "timing_events": []},
    {"session_id": "s", "round_index": 1, "prefix_tokens": 120, "newly_append_tokens": 8,
     "output_tokens": 0, "timing_events": [{"timestamp": "2026-08-25T00:00:16.5Z"}]},
    {"session_id": "t", "round_index": 0, "prefix_tokens": 0, "newly_append_tokens": 9,
     "output_tokens": 1, "timing_events": [{"timestamp": "2026-08-25T00:00:13Z"}]},
]  # fmt: skip
TRACELAB_CSV = """id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len
s,70,20,500.0,0,2500.0,30
s,8,1,3000.0,1,0.0,120
t,9,1,1500.0,0,0.0,0
"""
BAILIAN: list[dict[str, Any]] = [
    {"chat_id": 5, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 40, "output_length": 2,
     "type": "text", "turn": 1, "hash_ids": [10, 11, 12]},
    {"chat_id": 6, "parent_chat_id": 5, "timestamp": 70, "input_length": 64, "output_length": 0,
     "type": "text", "turn": 2, "hash_ids": [10, 11, 99, 12]},
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 80, "input_length": 50, "output_length": 1,
     "type": "text", "turn": 1, "hash_ids": [11, 10, 12]},
]  # fmt: skip
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens
5,u,0.5,ChatGPT,472,18,490
45,v,0.5,GPT-4,1087,0,1087
50,u,0.5,GPT-4,10,2,12
"""
SYSTEM = {"role": "system", "content": "You answer in one word. " * 20}
ASKS = {"role": "user", "content": "Which layers keep a state?"}
ANSWER = "Recurrent ones."
OPENAI: list[dict[str, Any]] = [
    {
        "timestamp": "2026-11-26T10:00:00Z",
        "session_id": "a",
        "request": {"model": "m", "messages": [SYSTEM, ASKS]},
        "response": {"choices": [{"message": {"role": "assistant", "content": ANSWER}}]},
    },
    {
        "timestamp": "2026-11-26T10:00:30+00:00",
        "session_id": "a",
        "body": {
            "messages": [
                SYSTEM,
                ASKS,
                {"role": "assistant", "content": ANSWER},
                {"role": "user", "content": [{"type": "text", "text": "And the others?"}]},
            ],
            "max_tokens": 7,
        },
    },
    {"messages": [SYSTEM, {"role": "user", "content": "Why?"}], "tools": [{"type": "function"}],
     "created": 1_795_687_260, "response": {"usage": {"completion_tokens": 3}}},
    {"prompt": "Once upon a time", "response": {"body": {"choices": [{"text": "there"}]}}},
]  # fmt: skip
CLIENTS = {
    "chunk-0-trace.csv": "0,0,0,,0,0\n600,2.5,1.0,Gamma,0.9,0.4\n1200,0.5,3.0,Weibull,0.5,1.0\n",
    "chunk-0-dataset.json": '{"0": {"input_tokens": "{}", "output_tokens": "{}"}, "600": '
    '{"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 1.0}", "reason_ratio": "{}"}}',
    "chunk-1-trace.csv": "0,0.2,1.0,Gamma,1.0,5.0\n600,0.1,1.0,Weibull,1.0,10.0\n1200,0,0,,0,0\n",
    "chunk-1-dataset.json": '{"0": {"input_tokens": "{1000: 1e-3, 2000: 0.0}", '
    '"output_tokens": "{9: 0.25}"}}',
}


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def run(name: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CONVERT / f"{name}.py"), *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def convert(folder: Path, name: str, given: str) -> Trace:
    """Return the trace that the replay reads from a converted file."""
    ran = run(name, given=given)
    assert ran.returncode == 0, ran.stderr
    path = folder / "requests.jsonl"
    path.write_text(ran.stdout)
    return read_trace(path)


def common(trace: Trace, one: int, other: int) -> int:
    """Tokens with which both requests begin."""
    ours, theirs = trace.token_ids(one), trace.token_ids(other)
    both = min(len(ours), len(theirs))
    return int(np.argmin(np.append(ours[:both] == theirs[:both], False)))


def test_a_turn_of_aiperf_repeats_all_that_was_said_before_it(tmp_path: Path) -> None:
    trace = convert(tmp_path, "aiperf", lines(AIPERF))
    # In the order of arrival: both first turns, and then both later ones.
    assert trace.prompt_tokens.tolist() == [100, 70, 172, 176]
    assert trace.output_tokens.tolist() == [7, 9, 1, 1]
    assert trace.session.tolist() == [0, 1, 0, 0]
    assert trace.arrival.tolist() == pytest.approx([0, 0.004, 0.2505, 0.2505])
    # Ids stand for 64 tokens, as the lengths say; digests for 16.
    assert common(trace, 0, 1) == 64
    assert common(trace, 0, 2) == 96
    assert common(trace, 2, 3) == 160


def test_turns_of_aiperf_whose_ids_have_no_size_are_refused() -> None:
    ran = run("aiperf", given=lines([{"session_id": "a", "input_length": 99, "hash_ids": [1] * 9}]))
    assert ran.returncode == 1
    assert "no size of (512, 64," in ran.stderr


def test_ids_of_kvcache_simulator_are_numbers_or_text(tmp_path: Path) -> None:
    trace = convert(tmp_path, "kvcache_simulator", lines(KVCACHE_SIMULATOR))
    assert trace.arrival.tolist() == [0, 1, 2]
    assert trace.prompt_tokens.tolist() == [32, 33, 20]
    assert trace.output_tokens.tolist() == [1, 5, 1]
    assert (common(trace, 0, 1), common(trace, 0, 2)) == (32, 0)
    wrong = [{"block_size": 16, "hash_ids": [1], "input_length": 17}]
    ran = run("kvcache_simulator", given=lines(wrong))
    assert "request 1: its hash_ids are not of its input_length" in ran.stderr


def test_a_block_of_bailian_behind_another_prefix_is_another_block(tmp_path: Path) -> None:
    trace = convert(tmp_path, "bailian", lines(BAILIAN))
    assert (common(trace, 0, 1), common(trace, 0, 2), common(trace, 1, 2)) == (32, 0, 0)
    assert not {*trace.token_ids(0), *trace.token_ids(1)} & {*trace.token_ids(2)}
    assert trace.session.tolist() == [0, 0, 1]
    assert trace.arrival.tolist() == [0, 8.5, 18.5]
    assert trace.prompt_tokens.tolist() == [40, 64, 50]
    assert trace.output_tokens.tolist() == [2, 1, 1]
    ran = run("bailian", given=lines([BAILIAN[0] | {"hash_ids": [10]}]))
    assert "request 1: its hash_ids are not of its input_length" in ran.stderr


def test_requests_of_burstgpt_share_nothing(tmp_path: Path) -> None:
    without = BURSTGPT.replace("Session ID,", "").replace("u,", "").replace("v,", "")
    for given, sessions in ((BURSTGPT, [0, 1, 0]), (without, [-1, -1, -1])):
        trace = convert(tmp_path, "burstgpt", given)
        assert trace.session.tolist() == sessions
        assert trace.arrival.tolist() == [0, 40, 45]
        assert trace.prompt_tokens.tolist() == [472, 1087, 10]
        assert trace.output_tokens.tolist() == [18, 1, 2]
        ids = [token for request in range(3) for token in trace.token_ids(request).tolist()]
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("given", "arrivals", "prompts"),
    [
        (lines(TRACELAB), [0, 3, 6.5, 6.5], [100, 9, 128, 69]),
        (TRACELAB_CSV, [0, 1, 2.5], [100, 9, 128]),
    ],
    ids=["json", "csv"],
)
def test_a_round_repeats_what_it_says_of_its_session(
    tmp_path: Path, given: str, arrivals: list[float], prompts: list[int]
) -> None:
    trace = convert(tmp_path, "tracelab", given)
    assert trace.arrival.tolist() == arrivals
    assert trace.prompt_tokens.tolist() == prompts
    assert trace.session.tolist() == [0, 1, 0, 0][: len(prompts)]
    assert common(trace, 0, 2) == 112  # whole blocks of 120 tokens
    if len(prompts) == 4:
        assert common(trace, 2, 3) == 64


def test_a_next_turn_of_a_log_repeats_the_prompt_and_its_answer(tmp_path: Path) -> None:
    trace = convert(tmp_path, "openai_log", lines(OPENAI))
    first, second = (int(trace.prompt_tokens[request]) for request in (0, 1))
    assert trace.arrival.tolist() == [0, 30, 60, 61]
    assert trace.session.tolist() == [0, 0, 1, 2]
    assert trace.output_tokens.tolist() == [4, 7, 3, 2]
    assert second > first > 100
    assert common(trace, 0, 1) == (first + 4) // 16 * 16
    assert common(trace, 0, 2) == 0  # the tools come first
    assert trace.prompt_tokens[3] == 4


def test_requests_have_the_rates_and_lengths_of_servegens_clients(tmp_path: Path) -> None:
    for name, text in CLIENTS.items():
        (tmp_path / name).write_text(text)
    ran = run("servegen", str(tmp_path), "10000")
    assert ran.returncode == 0, ran.stderr
    assert run("servegen", str(tmp_path), "10000").stdout == ran.stdout
    path = tmp_path / "requests.csv"
    path.write_text(ran.stdout)
    trace = read_trace(path, "azure")
    prompts, first = trace.prompt_tokens, trace.arrival < 600
    assert set(prompts.tolist()) == {100, 300, 1000}
    assert set(trace.output_tokens.tolist()) == {7, 9}
    busy = first & (prompts < 1000)
    assert np.count_nonzero(busy) == pytest.approx(1500, rel=0.1)
    assert np.count_nonzero(first & (prompts == 1000)) == pytest.approx(60, rel=0.5)
    assert np.mean(prompts[busy] == 100) == pytest.approx(0.5, abs=0.05)
    assert trace.arrival[-1] < 1200
    assert run("servegen", str(tmp_path), "50").stdout.count("\n") == 51
    assert "holds no client" in run("servegen", str(CONVERT)).stderr


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("aiperf", lines(AIPERF)),
        ("kvcache_simulator", lines(KVCACHE_SIMULATOR)),
        ("tracelab", lines(TRACELAB)),
        ("tracelab", TRACELAB_CSV),
        ("openai_log", lines(OPENAI)),
        ("bailian", lines(BAILIAN)),
        ("burstgpt", BURSTGPT),
    ],
)
def test_the_replay_names_the_converter_of_a_file(tmp_path: Path, name: str, given: str) -> None:
    path = tmp_path / "trace"
    path.write_text(given)
    with pytest.raises(TraceError, match=rf"python examples/convert/{name}\.py < {path} > "):
        read_trace(path)


def test_the_replay_names_the_converter_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text(CLIENTS["chunk-0-trace.csv"])
    with pytest.raises(TraceError, match=rf"python examples/convert/servegen\.py {tmp_path} > "):
        read_trace(tmp_path)
