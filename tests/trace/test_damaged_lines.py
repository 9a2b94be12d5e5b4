import gzip
import json
from pathlib import Path

import pytest
from hybrid_blocks.tools.trace import DamagedLineError, TraceError, read_trace

GOOD: dict[str, str] = {
    "mooncake": '{"timestamp": 1, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}',
    "sharegpt": json.dumps(
        {"conversations": [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "so"}]}
    ),
    "llmservingsim": (
        '{"input_toks": 1, "output_toks": 9, "arrival_time_ns": 3, "input_tok_ids": [4]}'
    ),
    "azure": "2023-11-16 18:15:46.6805900,374,44",
    "conversations": json.dumps(
        {"id": "a", "requests": [{"t": 0, "type": "n", "in": 64, "out": 1, "keep": 0, "new": [1]}]}
    ),
}

CONVERSATION = '{"id": "a", "requests": [{"t": 0, "type": "n", "out": 1, %s}]}'

DAMAGED: list[tuple[str, str, str]] = [
    ("mooncake", '{"timestamp": 1, "input_len', "malformed"),
    ("mooncake", "\x00\x01\x02", "malformed"),
    ("mooncake", GOOD["mooncake"].replace("600", "-1"), "input_length"),
    ("mooncake", GOOD["mooncake"].replace("600", '"600"'), "input_length"),
    ("mooncake", GOOD["mooncake"].replace("[1, 2]", "[1]"), "need 2 hash_ids"),
    ("mooncake", GOOD["mooncake"].replace("[1, 2]", "[1, -2]"), "hash_ids"),
    ("mooncake", '{"timestamp": 1, "input_length": 600, "output_length": 9}', "hash_ids"),
    ("llmservingsim", GOOD["llmservingsim"].replace("[4]", "[4, 5]"), "there are 2 input_tok_ids"),
    ("llmservingsim", GOOD["llmservingsim"].replace("[4]", "[2147483648]"), "input_tok_ids"),
    ("sharegpt", GOOD["sharegpt"].replace('"so"', "7"), "value"),
    ("sharegpt", '{"id": 3}', "conversations"),
    ("sharegpt", '{"conversations": ' + "[" * 5000, "conversations|recursion"),
    ("azure", "2023-11-16 18:15:46.6805900,374", "found 2 fields"),
    ("azure", "2023-11-16 18:15:46nan,374,44", "no time"),
    ("azure", "2023-11-16 18:15:46.6805900,9999999999,44", "ContextTokens is 9999999999"),
    ("mooncake", GOOD["mooncake"].replace("9,", "9999999999,"), "output_length"),
    ("llmservingsim", GOOD["llmservingsim"].replace("9,", "9999999999,"), "output_toks"),
    ("azure", "2023-11-16 18:15:46.6805900,many,44", "ContextTokens is 'many', no whole number"),
    ("azure", "yesterday,374,44", "TIMESTAMP is 'yesterday', no time such as"),
    ("azure", "2023-11-16 18:15:46.6805900,0,44", "ContextTokens is 0"),
    ("conversations", '{"id": "a"}', "requests"),
    ("conversations", CONVERSATION % '"in": 0', "no prompt tokens"),
    (
        "conversations",
        CONVERSATION % '"in": 64, "keep": 1, "new": []',
        "keeps 1 ids",
    ),
    ("conversations", CONVERSATION % '"in": 200, "keep": 0, "new": [1]', "has 1 ids"),
    ("conversations", CONVERSATION % '"in": 64, "new": [[5, 3]]', "ends before it begins"),
    ("conversations", '{"id": "a", "block_size": 16, "requests": []}', "block_size is 16"),
]


@pytest.mark.parametrize(("name", "damaged", "reason"), DAMAGED)
def test_a_damaged_line_is_reported_with_file_and_line_number(
    tmp_path: Path, name: str, damaged: str, reason: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{GOOD[name]}\n\n{damaged}\n{GOOD[name]}\n")
    with pytest.raises(DamagedLineError, match=reason) as caught:
        read_trace(path, name)
    assert caught.value.line == 3
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(("name", "damaged", "reason"), DAMAGED)
def test_a_damaged_line_can_be_skipped_and_is_counted(
    tmp_path: Path, name: str, damaged: str, reason: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{damaged}\n{GOOD[name]}\n{damaged}\n{GOOD[name]}\n")
    trace = read_trace(path, name, on_error="skip")
    assert len(trace) == 2, reason
    assert trace.damaged_lines == 2


def test_a_compressed_file_that_breaks_off_is_cut_off_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    content = gzip.compress(f"{GOOD['mooncake']}\n".encode() * 3)
    path.write_bytes(content[:-9])
    with pytest.raises(DamagedLineError, match="compressed data ends or breaks"):
        read_trace(path, "mooncake")
    trace = read_trace(path, on_error="skip")
    assert (trace.damaged_lines, trace.skipped) == (0, ())
    assert trace.cut_off_after == len(trace) <= 3


def test_skipped_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    good = GOOD["mooncake"]
    path.write_text("\n".join([good, "no", "", good, "{}"]))
    trace = read_trace(path, on_error="skip")
    assert (trace.skipped, trace.cut_off_after, len(trace)) == ((2, 5), None, 2)


def test_a_list_without_an_end_is_refused_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f"[{GOOD['sharegpt']}, {GOOD['sharegpt']}")
    for on_error in ("raise", "skip"):
        with pytest.raises(TraceError, match="not a whole JSON list"):
            read_trace(path, on_error=on_error)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="/proc/self/mem: "):
        read_trace(Path("/proc/self/mem"))
    with pytest.raises(TraceError, match=f"{tmp_path}: Is a directory"):
        read_trace(tmp_path)
