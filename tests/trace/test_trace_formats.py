import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hybrid_blocks.tools.cli import app
from hybrid_blocks.tools.trace import FORMATS, Trace, TraceError, read_trace
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hybrid_blocks.tools.trace.read import Format
from typer.testing import CliRunner

MOONCAKE = [
    {"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [7, 8]},
    {"timestamp": 1500, "input_length": 1100, "output_length": 0, "hash_ids": [7, 8, 9]},
    {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [7, 10]},
]
LLMSERVINGSIM = [
    {
        "input_toks": 3,
        "output_toks": 2,
        "arrival_time_ns": 5e8,
        "input_tok_ids": [5, 6, 9],
        "output_tok_ids": [1, 2],
    },
    {"input_toks": 2, "output_toks": 3, "arrival_time_ns": 2e9, "input_tok_ids": [5, 6]},
]
SHAREGPT: list[dict[str, object]] = [
    {
        "id": "a_0",
        "conversations": [
            {"from": "human", "value": "What is a hybrid model?"},
            {"from": "gpt", "value": "One with layers of several kinds."},
            {"from": "human", "value": "Name one."},
            {"from": "gpt", "value": "Granite."},
            {"from": "human", "value": "Thanks."},
        ],
    },
    {"id": "b", "conversations": []},
    {"id": "c", "conversations": [{"from": "gpt", "value": "So it ends."}]},
    {
        "id": "d",
        "conversations": [
            {"from": "gpt", "value": "Hello."},
            {"from": "human", "value": "x" * 300 + "y"},
            {"from": "gpt", "value": ""},
            {"from": "human", "value": "x" * 300 + "z"},
            {"from": "gpt", "value": "Ää."},
        ],
    },
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9305900,396,0
"""
CONVERSATIONS: list[dict[str, object]] = [
    {
        "id": "a",
        "block_size": 64,
        "requests": [
            {"t": 0.0, "type": "n", "in": 130, "out": 10, "keep": 0, "new": [[1, 2]]},
            {"t": 9.0, "type": "n", "in": 200, "out": 4, "keep": 2, "new": [3]},
        ],
    },
    {
        "id": "b",
        "requests": [{"t": 0.0, "type": "n", "in": 130, "out": 1, "hash_ids": [4, 9]}],
    },
]


def lines(records: list[dict[str, object]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


SAMPLES: dict[str, str] = {
    "mooncake": lines(MOONCAKE),
    "sharegpt": lines(SHAREGPT),
    "llmservingsim": lines(LLMSERVINGSIM),
    "azure": AZURE,
    "conversations": lines(CONVERSATIONS),
}


def prompt(trace: Trace, request: int) -> list[int]:
    return list(trace.token_ids(request)[: trace.prompt_tokens[request]].tolist())


def output(trace: Trace, request: int) -> list[int]:
    return list(trace.token_ids(request)[trace.prompt_tokens[request] :].tolist())


def assert_same(left: Trace, right: Trace) -> None:
    assert len(left) == len(right)
    for column in ("arrival", "follows", "prompt_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(left, column), getattr(right, column))
    for request in range(len(left)):
        np.testing.assert_array_equal(left.token_ids(request), right.token_ids(request))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_is_detected_and_reads_the_same_when_compressed(
    tmp_path: Path, name: str, packed: bool
) -> None:
    plain, path = tmp_path / "plain", tmp_path / "trace"
    plain.write_text(SAMPLES[name])
    content = SAMPLES[name].encode()
    path.write_bytes(gzip.compress(content) if packed else content)

    assert_same(read_trace(path), read_trace(plain, name))


@pytest.mark.parametrize("name", SAMPLES)
def test_tokens_are_int32_and_as_many_as_the_lengths_say(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES[name])
    trace = read_trace(path)
    for request in range(len(trace)):
        tokens = trace.token_ids(request)
        assert tokens.dtype == np.int32
        assert len(tokens) == trace.prompt_tokens[request] + trace.output_tokens[request]
        assert tokens.min() >= 0


@pytest.mark.parametrize("name", SAMPLES)
def test_blank_lines_are_passed_over(tmp_path: Path, name: str) -> None:
    plain, spaced = tmp_path / "plain", tmp_path / "spaced"
    plain.write_text(SAMPLES[name])
    spaced.write_text("\n" + SAMPLES[name].replace("\n", "\n\n") + "  \n")
    assert_same(read_trace(spaced), read_trace(plain))


def test_mooncake_ids_share_exactly_the_leading_blocks_that_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES["mooncake"])
    trace = read_trace(path)

    assert trace.arrival.tolist() == [0, 1.5, 1.5]
    assert trace.prompt_tokens.tolist() == [1024, 1100, 600]
    assert trace.output_tokens.tolist() == [3, 1, 5]
    first, second, third = (prompt(trace, request) for request in range(3))
    assert first == second[:1024]
    assert first[:512] == third[:512]
    assert set(first[512:]).isdisjoint(third[512:])


def test_mooncake_outputs_are_unlike_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES["mooncake"])
    trace = read_trace(path)
    prompts = {token for request in range(3) for token in prompt(trace, request)}
    outputs = [token for request in range(3) for token in output(trace, request)]
    assert len(outputs) == len(set(outputs)) == 9
    assert prompts.isdisjoint(outputs)


def test_tokens_of_llmservingsim_are_the_recorded_ones_and_missing_outputs_are_unique(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES["llmservingsim"])
    trace = read_trace(path)

    assert trace.arrival.tolist() == [0.0, 1.5]
    assert trace.token_ids(0).tolist() == [5, 6, 9, 1, 2]
    assert prompt(trace, 1) == [5, 6]
    assert len(output(trace, 1)) == 3
    assert min(output(trace, 1)) > 9


@pytest.mark.parametrize("indent", [None, 2])
def test_sharegpt_is_read_as_a_list_and_as_lines(tmp_path: Path, indent: int | None) -> None:
    as_lines, as_list = tmp_path / "lines", tmp_path / "list"
    as_lines.write_text(SAMPLES["sharegpt"])
    as_list.write_text(json.dumps(SHAREGPT, indent=indent))
    assert_same(read_trace(as_list), read_trace(as_lines, "sharegpt"))


def test_each_answer_of_sharegpt_is_a_request_with_all_that_was_said_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(SHAREGPT))
    trace = read_trace(path)
    assert trace.follows.tolist() == [-1, 0, -1]
    assert trace.arrival.tolist() == [0.0, 15.0, 3.0]
    # 23, 33, 9 and 8 bytes; then 6, 301, none, 301 and 5.
    assert trace.prompt_tokens.tolist() == [6, 6 + 9 + 3, 2 + 76 + 76]
    assert trace.output_tokens.tolist() == [9, 2, 2]
    assert prompt(trace, 1)[:15] == trace.token_ids(0).tolist()
    first, second = prompt(trace, 2)[2:78], prompt(trace, 2)[78:]
    assert first[:64] == second[:64]
    assert set(first[64:]).isdisjoint(second[64:])


def test_a_mark_of_the_byte_order_is_passed_over(tmp_path: Path) -> None:
    for name, sample in SAMPLES.items():
        plain, marked = tmp_path / "plain", tmp_path / "marked"
        plain.write_text(sample)
        marked.write_text(sample, encoding="utf-8-sig")
        assert_same(read_trace(marked), read_trace(plain, name))


def test_azure_requests_start_at_zero_and_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES["azure"])
    trace = read_trace(path)

    assert trace.arrival.tolist() == pytest.approx([0.0, 4.25])
    assert trace.output_tokens.tolist() == [44, 1]
    tokens = [token for request in range(2) for token in trace.token_ids(request).tolist()]
    assert len(tokens) == len(set(tokens)) == 374 + 44 + 396 + 1


def test_azure_traces_of_later_years_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01.009930+00:00,2399,6\n"
    )
    trace = read_trace(path)
    assert trace.arrival.tolist() == pytest.approx([0.0, 1.0])
    assert trace.prompt_tokens.tolist() == [2162, 2399]
    assert trace.output_tokens.tolist() == [5, 6]

    path.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15 12:00:00.5,2,3100,44\n"
        "2024-10-15 12:00:01,0,700,1\n"
    )
    trace = read_trace(path)
    assert trace.arrival.tolist() == [0.0, 0.5]
    assert trace.prompt_tokens.tolist() == [3100, 700]
    assert trace.output_tokens.tolist() == [44, 1]


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
def test_a_zone_behind_a_time_is_no_fraction_of_it(
    tmp_path: Path, time: str, seconds: float
) -> None:
    path = tmp_path / "trace"
    early = "2024-05-09 00:00:01"
    path.write_text(f"{early},8,1\n{time},8,1\n")
    assert read_trace(path, "azure").arrival[1] == 86_400 + seconds


def test_a_file_in_no_known_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"question": 42}\n')
    with pytest.raises(TraceError, match=r"no known format.*mooncake, conversations") as caught:
        read_trace(path)
    text = str(caught.value)
    assert text.startswith(
        f'{path} is in no known format: its first line begins {{"question": 42}}. It has no field '
        "of one. docs/reference/traces.md lists"
    )


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 4}',
            "The nearest is mooncake, without hash_ids",
        ),
        (
            '{"arrival_time_ns": 1, "input_toks": 600}',
            "The nearest is llmservingsim, without output_toks, input_tok_ids",
        ),
        (
            '{"input_length": 600, "timest',
            "The nearest is mooncake, without timestamp, output_length, hash_ids",
        ),
        (
            "TIMESTAMP,ContextTokens,Model",
            "The nearest is azure, without GeneratedTokens",
        ),
        ("Timestamp,Model,Request tokens", "The nearest is burstgpt, without Response tokens"),
        (
            "ContextTokens,GeneratedTokens,TIMESTAMP",
            "The nearest is azure, in this order: TIMESTAMP,ContextTokens,GeneratedTokens",
        ),
    ],
)
def test_a_file_in_no_known_format_is_compared_with_the_nearest(
    tmp_path: Path, line: str, nearest: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(f"{line}\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert nearest in str(caught.value)


def test_bytes_of_a_file_in_no_known_format_are_shown_as_text(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\xff\x00pickled, not text\n")
    with pytest.raises(TraceError, match=r"begins \\xff\\x00pickled, not text\. It has no field"):
        read_trace(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("")
    for name in ("auto", "mooncake"):
        with pytest.raises(TraceError, match="holds no request"):
            read_trace(path, name)


def test_more_distinct_tokens_than_int32_holds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    row = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [2**22 - 1]}
    path.write_text(json.dumps(row))
    with pytest.raises(TraceError, match=r"2,147,483,647 distinct tokens"):
        read_trace(path)


def test_a_format_is_one_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading by mark, by name, and the commands that read traces need nothing more."""
    row = Format((b"prompt;output",), _parse_pair, _build_pairs)
    monkeypatch.setitem(FORMATS, "pairs", row)
    path = tmp_path / "trace.txt"
    path.write_text("prompt;output 10;4\n")
    for name in ("auto", "pairs"):
        assert read_trace(path, name).total_tokens.tolist() == [14]
    for command in (["replay", path, "--format", "pairs"], ["replay", path], [*PLAN, path]):
        ran = CliRunner().invoke(app, list(map(str, command)))
        assert ran.exit_code == 0, ran.output


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


def test_a_format_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    with pytest.raises(TraceError, match="'parquet' is no trace format; known are auto, mooncake,"):
        read_trace(path, "parquet")
