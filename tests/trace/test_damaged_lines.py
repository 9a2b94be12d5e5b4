"""Files that are wrong as a whole, or in a line: each ends in a trace or in one line of error."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hybrid_blocks.tools.trace import DamagedLineError, OnError, Trace, TraceError, measure_sharing
from mutated_files import NUMBERS, VALUE, VALUES
from test_trace_formats import SAMPLES, assert_same, read

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
RAW = '{"id": "a", "block_size": %d, "requests": [{"t": 0, "type": "s", "in": 130, "out": 1, %s}]}'
CONVERSATION = '{"id": "a", "requests": [{"t": 0, "type": "n", "out": 1, %s}]}'

DAMAGED: list[tuple[str, str, str]] = [
    ("mooncake", '{"timestamp": 1, "input_len', "malformed"),
    ("mooncake", "\x00\x01\x02", "malformed"),
    ("mooncake", GOOD["mooncake"].replace("600", "-1"), "input_length"),
    ("mooncake", GOOD["mooncake"].replace("600", '"600"'), r"`\$.input_length`: it is '600'$"),
    ("mooncake", GOOD["mooncake"].replace("[1, 2]", "[1]"), "need 2 hash_ids"),
    ("mooncake", GOOD["mooncake"].replace("[1, 2]", "[1, -2]"), r"hash_ids\[1\]`: it is -2$"),
    (
        "mooncake",
        GOOD["mooncake"].replace("[1, 2]", f'["{"x" * 999}", 1]'),
        rf"hash_ids\[0\]`: it is '{'x' * 39}…$",
    ),
    ("mooncake", '{"timestamp": 1, "input_length": 600, "output_length": 9}', "hash_ids"),
    ("mooncake", '{"hash_ids": 5, "input_length": ', 'the line begins {"hash_ids": 5, "input_len'),
    ("mooncake", '{"hash_ids": [1]}', r'`timestamp`; the line begins {"hash_ids": \[1\]}'),
    ("mooncake", GOOD["mooncake"].replace("9,", "9999999999,"), "output_length"),
    ("mooncake", GOOD["mooncake"].replace("9,", f"{10**30},"), f"output_length`: it is {10**30}"),
    ("llmservingsim", GOOD["llmservingsim"].replace("[4]", "[4, 5]"), "there are 2 input_tok_ids"),
    ("llmservingsim", GOOD["llmservingsim"].replace("[4]", "[2147483648]"), "input_tok_ids"),
    ("llmservingsim", GOOD["llmservingsim"].replace("9,", "9999999999,"), "output_toks"),
    ("sharegpt", GOOD["sharegpt"].replace('"so"', "7"), "value"),
    ("sharegpt", '{"id": 3}', "conversations"),
    ("sharegpt", '{"conversations": ' + "[" * 5000, "conversations|recursion"),
    ("azure", "2023-11-16 18:15:46.6805900,374", "found 2 fields"),
    ("azure", "2023-11-16 18:15:46nan,374,44", "no time"),
    ("azure", "2023-11-16 18:15:46.6805900,9999999999,44", "ContextTokens is 9999999999"),
    ("azure", "2023-11-16 18:15:46.6805900,many,44", "ContextTokens is 'many', no whole number"),
    ("azure", "yesterday,374,44", "TIMESTAMP is 'yesterday', no time such as"),
    ("azure", "2023-11-16 18:15:46.6805900,0,44", "ContextTokens is 0"),
    ("conversations", '{"id": "a"}', "requests"),
    ("conversations", CONVERSATION % '"in": 0', "no prompt tokens"),
    ("conversations", CONVERSATION % '"in": 64, "keep": 1, "new": []', "keeps 1 ids"),
    ("conversations", CONVERSATION % '"in": 200, "keep": 0, "new": [1]', "has 1 ids"),
    ("conversations", CONVERSATION % '"in": 64, "new": [[5, 3]]', "ends before it begins"),
    ("conversations", '{"id": "a", "block_size": 16, "requests": []}', "block_size is 16"),
    ("conversations", RAW % (64, '"hash_ids": [1]'), "has 1 ids"),
    ("conversations", RAW % (32, '"hash_ids": [1, 2]'), "is 32"),
]


@pytest.mark.parametrize(("name", "damaged", "reason"), DAMAGED)
def test_a_damaged_line_is_reported_with_its_place_or_skipped_and_counted(
    tmp_path: Path, name: str, damaged: str, reason: str
) -> None:
    content = f"{GOOD[name]}\n\n{damaged}\n{GOOD[name]}\n"
    with pytest.raises(DamagedLineError, match=reason) as caught:
        read(tmp_path, content, name)
    assert caught.value.line == 3
    assert str(caught.value).startswith(f"{tmp_path / 'trace'}:3: ")
    trace = read(tmp_path, content + damaged, name, "skip")
    assert (len(trace), trace.damaged_lines, trace.skipped) == (2, 2, (3, 5))
    assert trace.cut_off_after is None


@pytest.mark.parametrize(
    ("line", "name", "says"),
    [
        (b'{"hash_ids": "\xe9"}', "mooncake", "; the line begins {"),
        (b"1,\xe9", "azure", "byte 0xe9 is not UTF-8; the line begins 1,"),
    ],
)
def test_a_line_that_is_no_text_is_shown(tmp_path: Path, line: bytes, name: str, says: str) -> None:
    with pytest.raises(DamagedLineError, match=says):
        read(tmp_path, line, name)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(
    "damaged",
    [b"[1, 2]", b"[", b"\xff\xfe\x80", b"\x00" * 64, b"x" * 10_000_000, b"NaN"],
    ids=["list", "open list", "not UTF-8", "zeros", "10 MB", "NaN"],
)
def test_a_line_of_anything_is_damaged_alone(tmp_path: Path, name: str, damaged: bytes) -> None:
    content = SAMPLES[name].encode() * 2
    first, rest = content.split(b"\n", 1)
    with pytest.raises(DamagedLineError, match="trace:2: ") as raised:
        read(tmp_path, first + b"\n" + damaged + b"\n" + rest)
    assert len(str(raised.value)) < 400
    skipped = read(tmp_path, first + b"\n" + damaged + b"\n" + rest, "auto", "skip")
    assert skipped.skipped == (2,)
    assert_same(skipped, read(tmp_path, content))


def test_a_compressed_file_that_breaks_off_is_cut_off_where_it_ends(tmp_path: Path) -> None:
    content = gzip.compress(f"{GOOD['mooncake']}\n".encode() * 3)[:-9]
    with pytest.raises(DamagedLineError, match="compressed data ends or breaks"):
        read(tmp_path, content, "mooncake")
    trace = read(tmp_path, content, "auto", "skip")
    assert (trace.damaged_lines, trace.skipped) == (0, ())
    assert trace.cut_off_after == len(trace) <= 3


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_archive_cut_off_in_line_1_is_named(tmp_path: Path, pack: Any, on_error: str) -> None:
    packed = pack(SAMPLES["mooncake"].encode())
    with pytest.raises(TraceError, match=r"trace: its compressed data ends or breaks before the"):
        read(tmp_path, packed[:12], "auto", on_error)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD["mooncake"].replace("600", "0") + "\n", r":1: .*input_length.*: it is 0"),
        (f"[{GOOD['sharegpt']}, {GOOD['sharegpt']}", ".*not a whole JSON list"),
        (b"PAR1\x15\x04", " is Parquet; write it as JSON lines"),
        (b"PK\x03\x04\x14\x00", " is a zip archive; unpack it"),
        (bz2.compress(b"text"), " is compressed by bzip2; gzip and zstd are read"),
        (GOOD["mooncake"].encode("utf-16"), " is text in UTF-16; write it in UTF-8"),
        (GOOD["mooncake"].replace("{", "{\n"), " has a JSON object in several lines; jq -c"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_is_no_trace_yet_says_what_to_do(
    tmp_path: Path, content: str | bytes, says: str, on_error: OnError
) -> None:
    with pytest.raises(TraceError, match=f"trace{says}"):
        read(tmp_path, content, "auto", on_error)


def arriving(folder: Path, *milliseconds: int) -> Trace:
    row = json.loads(GOOD["mooncake"])
    return read(folder, "\n".join(json.dumps(row | {"timestamp": at}) for at in milliseconds))


@pytest.mark.parametrize("epoch", [0, 61_500, 1_700_000_000_000])
def test_times_count_from_the_first_request(tmp_path: Path, epoch: int) -> None:
    trace = arriving(tmp_path, *(epoch + at for at in (2500, 0, 1000)))
    assert trace.arrival.tolist() == [2.5, 0, 1]


def test_times_in_another_unit_are_noted_or_refused(tmp_path: Path) -> None:
    day = 86_400_000
    assert arriving(tmp_path, 0, 399 * day).notes == ()
    assert arriving(tmp_path, 0, 2000 * day).notes == (
        "request 2 of trace arrives 2,000 days after the first; see whether its time is in the "
        "unit of the format",
    )
    with pytest.raises(TraceError, match=r"request 2 of trace arrives 2,000,000 days after the"):
        arriving(tmp_path, 0, 2_000_000 * day)


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "block_tokens"])
def test_a_recorded_length_that_is_too_large_names_its_line(tmp_path: Path, field: str) -> None:
    row: dict[str, object] = {"hybrid_blocks_request": 0, "arrival": 0.5, "block_tokens": 16}
    row |= {"prompt_tokens": 20, "output_tokens": 3, "blocks": ""}
    content = f"{json.dumps(row)}\n{json.dumps(row | {field: 2**31})}\n"
    with pytest.raises(DamagedLineError, match=rf"trace:2: .*{field}`: it is 2147483648"):
        read(tmp_path, content)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("value", NUMBERS + VALUES, ids=lambda value: repr(value[:20]))
def test_any_value_in_any_place_is_read_or_refused(tmp_path: Path, name: str, value: bytes) -> None:
    text = SAMPLES[name].encode()
    places = list(VALUE.finditer(text))
    refused = []
    for place in places[:: 1 + len(places) // 40]:
        content = text[: place.start()] + value + text[place.end() :]
        for on_error in ("raise", "skip"):
            try:
                measure_sharing(read(tmp_path, content, name, on_error), 16)
            except TraceError as error:
                refused.append(str(error))
    assert all("trace" in error and len(error) < 500 for error in refused)
    assert all(len(error.splitlines()) == 1 for error in refused)
    assert refused


LARGE: dict[str, dict[str, Any]] = {
    "mooncake": {
        "timestamp": 0,
        "input_length": 2**31,
        "output_length": 1,
        "hash_ids": [0] * 2**22,
    },
    "conversations": {
        "id": "a",
        "requests": [{"t": 0, "type": "n", "in": 2**31 - 64, "out": 64, "new": [[0, 2**25 - 2]]}],
    },
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_request_with_more_tokens_than_are_told_apart_is_refused(
    tmp_path: Path, name: str, on_error: OnError
) -> None:
    with pytest.raises(TraceError, match=r"2,?147,?483,?64"):
        read(tmp_path, json.dumps(LARGE[name]), name, on_error)
