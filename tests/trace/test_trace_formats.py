"""Each format of traces is read as its publisher describes it, in every form that files have."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer
from hybrid_blocks.tools.trace import FORMATS, Trace, TraceError, read_trace
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hybrid_blocks.tools.trace.read import Format

Rows = list[dict[str, Any]]

MOONCAKE: Rows = [
    {"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [7, 8]},
    {"timestamp": 1500, "input_length": 1100, "output_length": 0, "hash_ids": [7, 8, 9]},
    {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [7, 10]},
]
LLMSERVINGSIM: Rows = [
    {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 5e8, "input_tok_ids": [5, 6, 9],
     "output_tok_ids": [1, 2]},
    {"input_toks": 2, "output_toks": 3, "arrival_time_ns": 2e9, "input_tok_ids": [5, 6]},
]  # fmt: skip


def said(*turns: str) -> Rows:
    """Turns of a conversation; who speaks is named before a colon."""
    return [dict(zip(("from", "value"), turn.split(": ", 1), strict=True)) for turn in turns]


SHAREGPT: Rows = [
    {"id": "a_0", "conversations": said(
        "human: What is a hybrid model?", "gpt: One with layers of several kinds.",
        "human: Name one.", "gpt: Granite.", "human: Thanks.",
    )},
    {"id": "b", "conversations": []},
    {"id": "c", "conversations": said("gpt: So it ends.")},
    {"id": "d", "conversations": said(
        "gpt: Hello.", f"human: {'x' * 300}y", "gpt: ", f"human: {'x' * 300}z", "gpt: Ää.",
    )},
]  # fmt: skip
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9305900,396,0
"""
CONVERSATIONS: Rows = [
    {"id": "a", "block_size": 64, "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 10, "keep": 0, "new": [[1, 2]]},
        {"t": 9.0, "type": "n", "in": 200, "out": 4, "keep": 2, "new": [3]},
    ]},
    {"id": "b", "requests": [{"t": 0.0, "type": "n", "in": 130, "out": 1, "hash_ids": [4, 9]}]},
]  # fmt: skip


def lines(records: Rows) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


SAMPLES: dict[str, str] = {
    "mooncake": lines(MOONCAKE),
    "sharegpt": lines(SHAREGPT),
    "llmservingsim": lines(LLMSERVINGSIM),
    "azure": AZURE,
    "conversations": lines(CONVERSATIONS),
}


def read(folder: Path, content: str | bytes, *options: Any) -> Trace:
    path = folder / "trace"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(path, *options)


def tokens(trace: Trace, request: int) -> list[int]:
    ids: list[int] = trace.token_ids(request).tolist()
    return ids


def prompt(trace: Trace, request: int) -> list[int]:
    return tokens(trace, request)[: trace.prompt_tokens[request]]


def output(trace: Trace, request: int) -> list[int]:
    return tokens(trace, request)[trace.prompt_tokens[request] :]


def common(trace: Trace, one: int, other: int) -> int:
    """Length of the common prefix of two requests."""
    pairs = zip(tokens(trace, one), tokens(trace, other), strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), -1)


def assert_same(left: Trace, right: Trace) -> None:
    assert len(left) == len(right)
    for column in ("arrival", "follows", "session", "prompt_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(left, column), getattr(right, column))
    for request in range(len(left)):
        np.testing.assert_array_equal(left.token_ids(request), right.token_ids(request))


FORMS: dict[str, Callable[[str], str | bytes]] = {
    "plain": str,
    "compressed": lambda text: gzip.compress(text.encode()),
    "with blank lines": lambda text: "\n" + text.replace("\n", "\n\n") + "  \n",
    "after a byte order mark": lambda text: text.encode("utf-8-sig"),
    "with line ends of Windows": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("form", FORMS)
def test_a_format_is_detected_and_equal_in_every_form(tmp_path: Path, name: str, form: str) -> None:
    trace = read(tmp_path, FORMS[form](SAMPLES[name]))
    assert_same(trace, read(tmp_path, SAMPLES[name], name))
    for request in range(len(trace)):
        ids = trace.token_ids(request)
        assert ids.dtype == np.int32
        assert len(ids) == trace.prompt_tokens[request] + trace.output_tokens[request]
        assert ids.min() >= 0


def test_mooncake_ids_share_exactly_the_leading_blocks_that_are_equal(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["mooncake"])
    assert trace.arrival.tolist() == [0, 1.5, 1.5]
    assert trace.prompt_tokens.tolist() == [1024, 1100, 600]
    assert trace.output_tokens.tolist() == [3, 1, 5]
    first, second, third = (prompt(trace, request) for request in range(3))
    assert first == second[:1024]
    assert first[:512] == third[:512]
    assert set(first[512:]).isdisjoint(third[512:])
    outputs = [token for request in range(3) for token in output(trace, request)]
    assert len(outputs) == len(set(outputs)) == 9
    assert {*first, *second, *third}.isdisjoint(outputs)


def test_tokens_of_llmservingsim_are_recorded_or_missing_and_then_unique(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["llmservingsim"])
    assert trace.arrival.tolist() == [0.0, 1.5]
    assert tokens(trace, 0) == [5, 6, 9, 1, 2]
    assert prompt(trace, 1) == [5, 6]
    assert len(output(trace, 1)) == 3
    assert min(output(trace, 1)) > 9


@pytest.mark.parametrize("indent", [None, 2])
def test_each_answer_of_sharegpt_is_a_request_with_all_that_was_said_before(
    tmp_path: Path, indent: int | None
) -> None:
    trace = read(tmp_path, json.dumps(SHAREGPT, indent=indent))
    assert_same(trace, read(tmp_path, SAMPLES["sharegpt"]))
    assert trace.follows.tolist() == [-1, 0, -1]
    assert trace.arrival.tolist() == [0.0, 15.0, 3.0]
    # 23, 33, 9 and 8 bytes; then 6, 301, none, 301 and 5.
    assert trace.prompt_tokens.tolist() == [6, 6 + 9 + 3, 2 + 76 + 76]
    assert trace.output_tokens.tolist() == [9, 2, 2]
    assert prompt(trace, 1)[:15] == tokens(trace, 0)
    first, second = prompt(trace, 2)[2:78], prompt(trace, 2)[78:]
    assert first[:64] == second[:64]
    assert set(first[64:]).isdisjoint(second[64:])


@pytest.mark.parametrize(
    ("text", "arrival", "prompts", "outputs"),
    [
        (AZURE, [0.0, 4.25], [374, 396], [44, 1]),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
            "2024-05-10 00:00:01.009930+00:00,2399,6\n",
            [0.0, 1.0],
            [2162, 2399],
            [5, 6],
        ),
        (
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 12:00:00.5,2,3100,44\n"
            "2024-10-15 12:00:01,0,700,1\n",
            [0.0, 0.5],
            [3100, 700],
            [44, 1],
        ),
    ],
    ids=["Azure 2023", "Azure 2024", "Azure with images"],
)
def test_arrivals_and_lengths_start_at_zero_and_share_nothing(
    tmp_path: Path, text: str, arrival: list[float], prompts: list[int], outputs: list[int]
) -> None:
    trace = read(tmp_path, text)
    assert trace.arrival.tolist() == pytest.approx(arrival)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == (prompts, outputs)
    ids = [*tokens(trace, 0), *tokens(trace, 1)]
    assert len(ids) == len(set(ids))
    assert trace.session.tolist() == [-1, -1]


def test_raw_lists_of_ids_are_read_as_their_delta_coded_form(tmp_path: Path) -> None:
    def conversation(*ids: dict[str, Any]) -> str:
        first, own, third, last = ids
        sub = {"t": 1.0, "type": "n", "in": 70, "out": 3} | own
        requests = [
            {"t": 0.0, "type": "s", "model": "m", "in": 130, "out": 10} | first,
            {"t": 1.0, "type": "subagent", "tool_tokens": 0, "requests": [sub]},
            {"t": 9.0, "type": "n", "in": 200, "out": 4, "think_time": 2.5} | third,
            {"t": 12.0, "type": "n", "in": 129, "out": 1} | last,
        ]
        about = {"id": "a", "models": ["m"], "block_size": 64, "tool_tokens": 64}
        return lines([about | {"system_tokens": 0, "requests": requests}])

    raw = read(
        tmp_path, conversation(*({"hash_ids": ids} for ids in ([1, 2], [1], [1, 2, 7], [1, 9])))
    )
    coded = ((0, [1, 2]), (0, [1]), (2, [7]), (1, [9]))
    assert_same(raw, read(tmp_path, conversation(*({"keep": it, "new": new} for it, new in coded))))
    assert common(raw, 0, 3) == 64


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("2024-05-10 00:00:01", 0),
        ("2024-05-10 00:00:01Z", 0),
        ("2024-05-10 00:00:01+00:00", 0),
        ("2024-05-10 00:00:01+05", -5 * 3600),
        ("2024-05-10 00:00:01-07", 7 * 3600),
        ("2024-05-10 00:00:01+0530", -5.5 * 3600),
        ("2024-05-10T00:00:01.5000000+05:30", 0.5 - 5.5 * 3600),
    ],
)
def test_a_zone_behind_a_time_is_no_fraction(tmp_path: Path, time: str, seconds: float) -> None:
    rows = f"2024-05-09 00:00:01,8,1\n{time},8,1\n"
    assert read(tmp_path, rows, "azure").arrival[1] == 86_400 + seconds


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"question": 42}', 'first line begins {"question": 42}. docs/reference/traces.md lists'),
        (b"\xff\x00pickled, not text", r"begins \xff\x00pickled, not text. docs"),
    ],
)
def test_a_file_in_no_known_format_is_refused(tmp_path: Path, line: bytes, told: str) -> None:
    with pytest.raises(TraceError, match=r"no known format.*mooncake, conversations") as caught:
        read(tmp_path, line + b"\n")
    assert told in str(caught.value)


def test_a_trace_without_requests_or_with_too_many_tokens_is_refused(tmp_path: Path) -> None:
    for name in ("auto", "mooncake"):
        with pytest.raises(TraceError, match="holds no request"):
            read(tmp_path, "", name)
    row = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [2**22 - 1]}
    with pytest.raises(TraceError, match=r"2,147,483,647 distinct tokens"):
        read(tmp_path, json.dumps(row))
    with pytest.raises(TraceError, match="'parquet' is no trace format; known are auto, mooncake,"):
        read(tmp_path, AZURE, "parquet")


def test_a_format_is_one_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading by mark, by name, and the commands that read traces need nothing more."""
    row = Format((b"prompt;output",), _parse_pair, _build_pairs)
    monkeypatch.setitem(FORMATS, "pairs", row)
    path = tmp_path / "trace.txt"
    path.write_text("prompt;output 10;4\n")
    for name in ("auto", "pairs"):
        assert read_trace(path, name).total_tokens.tolist() == [14]
    for command in (["replay", path, "--format", "pairs"], ["replay", path], [*PLAN, path]):
        answer(*command)


PLAN: list[object] = ["plan", "Granite-4.0-Micro", "--memory", "16GiB", "--trace"]


def _parse_pair(line: bytes) -> tuple[int, int]:
    prompt_tokens, output_tokens = line.split()[1].split(b";")
    return int(prompt_tokens), int(output_tokens)


def _build_pairs(name: str, records: Sequence[tuple[int, int]]) -> TraceBuilder:
    builder = TraceBuilder(name)
    for prompt_tokens, output_tokens in records:
        spans = [builder.fresh(prompt_tokens + output_tokens)]
        builder.add(spans, arrival=0, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    return builder
