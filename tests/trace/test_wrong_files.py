"""Files that are wrong as a whole, or in a line, in every format that is read."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hybrid_blocks.tools.trace import DamagedLineError, Trace, TraceError, read_trace
from test_more_formats import SAMPLES as MORE
from test_trace_formats import SAMPLES

EVERY = SAMPLES | MORE
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
RECORDED = {
    "hybrid_blocks_request": 0,
    "arrival": 0.5,
    "block_tokens": 16,
    "prompt_tokens": 20,
    "output_tokens": 3,
    "blocks": "",
}
DAY_MS = 86_400_000


def read(folder: Path, content: bytes, *options: Any) -> Trace:
    path = folder / "trace"
    path.write_bytes(content)
    return read_trace(path, *options)


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def same(one: Trace, other: Trace) -> bool:
    return all(
        np.array_equal(getattr(one, column), getattr(other, column))
        for column in ("arrival", "follows", "prompt_tokens", "output_tokens", "span_first")
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_of_windows_change_nothing(tmp_path: Path, name: str, mark: bytes) -> None:
    plain = EVERY[name].encode()
    changed = mark + plain.replace(b"\n", b"\r\n")
    assert same(read(tmp_path, changed), read(tmp_path, plain))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "damaged",
    [b"[1, 2]", b"[", b"\xff\xfe\x80", b"\x00" * 64, b"x" * 10_000_000, b"NaN"],
    ids=["list", "open list", "not UTF-8", "zeros", "10 MB", "NaN"],
)
def test_a_line_of_anything_is_damaged_and_the_lines_behind_it_are_read(
    tmp_path: Path, name: str, damaged: bytes
) -> None:
    content = EVERY[name].encode() * 2
    first, rest = content.split(b"\n", 1)
    with pytest.raises(DamagedLineError, match="trace:2: ") as raised:
        read(tmp_path, first + b"\n" + damaged + b"\n" + rest)
    assert len(str(raised.value)) < 400
    skipped = read(tmp_path, first + b"\n" + damaged + b"\n" + rest, "auto", "skip")
    assert skipped.skipped == (2,)
    assert same(skipped, read(tmp_path, content))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_archive_cut_off_in_its_first_line_is_named(
    tmp_path: Path, name: str, pack: Any, on_error: str
) -> None:
    packed = pack(EVERY[name].encode())
    with pytest.raises(TraceError, match=r"trace: its compressed data ends or breaks before the"):
        read(tmp_path, packed[:12], "auto", on_error)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_of_damaged_lines_alone_names_the_first(tmp_path: Path, on_error: str) -> None:
    content = lines(MOONCAKE | {"input_length": 0}) * 3
    with pytest.raises(TraceError, match=r"trace:1: .*input_length.*: it is 0"):
        read(tmp_path, content, "auto", on_error)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PAR1\x15\x04", "is Parquet; write it as JSON lines"),
        (b"PK\x03\x04\x14\x00", "is a zip archive; unpack it"),
        (bz2.compress(lines(MOONCAKE)), "is compressed by bzip2; gzip and zstd are read"),
        (json.dumps(MOONCAKE).encode("utf-16"), "is text in UTF-16; write it in UTF-8"),
        (json.dumps(MOONCAKE, indent=1).encode(), "has a JSON object in several lines; jq -c"),
    ],
)
def test_a_file_that_is_no_trace_yet_says_what_to_do(
    tmp_path: Path, content: bytes, says: str
) -> None:
    with pytest.raises(TraceError, match=f"trace {says}"):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"input_length": "600"}, "`$.input_length`: it is '600'"),
        ({"hash_ids": [1, -2]}, "`$.hash_ids[1]`: it is -2"),
        ({"output_length": 10**30}, f"`$.output_length`: it is {10**30}"),
        ({"hash_ids": ["x" * 999, 1]}, f"`$.hash_ids[0]`: it is '{'x' * 39}…"),
    ],
)
def test_the_error_shows_the_value(tmp_path: Path, field: dict[str, Any], says: str) -> None:
    with pytest.raises(DamagedLineError) as raised:
        read(tmp_path, lines(MOONCAKE | field))
    assert str(raised.value).endswith(says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"hash_ids": 5, "input_length": ', '; the line begins {"hash_ids": 5, "input_length":'),
        (b'{"hash_ids": [1]}', '`timestamp`; the line begins {"hash_ids": [1]}'),
        (b'{"hash_ids": "\xe9"}', "; the line begins {"),
    ],
)
def test_the_error_shows_how_the_line_begins(tmp_path: Path, line: bytes, says: str) -> None:
    with pytest.raises(DamagedLineError) as raised:
        read(tmp_path, line, "mooncake")
    assert says in str(raised.value)


def test_the_error_names_the_byte_that_is_not_utf_8(tmp_path: Path) -> None:
    with pytest.raises(DamagedLineError, match="byte 0xe9 is not UTF-8; the line begins 1,"):
        read(tmp_path, b"1,\xe9", "burstgpt")


@pytest.mark.parametrize("epoch", [0, 61_500, 1_700_000_000_000])
def test_times_count_from_the_first_request(tmp_path: Path, epoch: int) -> None:
    records = [MOONCAKE | {"timestamp": epoch + at} for at in (2500, 0, 1000)]
    assert read(tmp_path, lines(*records)).arrival.tolist() == [2.5, 0, 1]


def test_times_in_another_unit_are_noted_or_refused(tmp_path: Path) -> None:
    def apart(days: int) -> Trace:
        return read(tmp_path, lines(MOONCAKE, MOONCAKE | {"timestamp": days * DAY_MS}))

    assert apart(399).notes == ()
    assert apart(2000).notes == (
        "request 2 of trace arrives 2,000 days after the first; see whether its time is in the "
        "unit of the format",
    )
    with pytest.raises(TraceError, match=r"request 2 of trace arrives 2,000,000 days after the"):
        apart(2_000_000)


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "block_tokens"])
def test_a_recorded_length_that_is_too_large_names_its_line(tmp_path: Path, field: str) -> None:
    with pytest.raises(DamagedLineError, match=rf"trace:2: .*{field}`: it is 2147483648"):
        read(tmp_path, lines(RECORDED, RECORDED | {field: 2**31}))
