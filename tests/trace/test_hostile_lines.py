"""Lines that hold what no format expects: each read ends in a trace or in one line of error."""

import json
import re
from pathlib import Path

import pytest
from hybrid_blocks.tools.trace import OnError, Trace, TraceError, measure_sharing, read_trace
from test_more_formats import SAMPLES as MORE
from test_trace_formats import SAMPLES

EVERY = SAMPLES | MORE
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|\b(?:true|false|null)\b')
HOSTILE = {
    "2^31": b"2147483648",
    "2^31 - 1": b"2147483647",
    "2^63": b"9223372036854775808",
    "5,000 digits": b"9" * 5000,
    "negative": b"-1",
    "NaN": b"NaN",
    "infinite": b"Infinity",
    "overflow": b"1e999",
    "huge": b"1e308",
    "a fraction": b"0.5",
    "nothing": b"",
    "null": b"null",
    "text": b'"x"',
    "a list": b"[[1]]",
    "an object": b'{"a": 1}',
    "deep": b"[" * 100_000,
    "half a surrogate": rb'"\ud800"',
    "NUL": b"\x00",
    "not UTF-8": b"\xff",
    "UTF-16": "1,2".encode("utf-16"),
    "the first year": b"0001-01-01 00:00:00+14:00",
    "the last year": b'"9999-12-31T23:59:59-14:00"',
}


def read(path: Path, content: bytes, name: str, on_error: OnError) -> Trace | str:
    """The trace, or the one line that refuses it."""
    path.write_bytes(content)
    try:
        trace = read_trace(path, name, on_error)
    except TraceError as error:
        return str(error)
    measure_sharing(trace, 16)
    return trace


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_any_value_in_any_place_is_read_or_refused_in_one_line(
    tmp_path: Path, name: str, value: bytes
) -> None:
    text = EVERY[name].encode()
    places = list(VALUE.finditer(text))
    refused = 0
    for place in places[:: 1 + len(places) // 40]:
        content = text[: place.start()] + value + text[place.end() :]
        for on_error in ("raise", "skip"):
            outcome = read(tmp_path / "trace", content, name, on_error)
            if isinstance(outcome, str):
                refused += 1
                assert str(tmp_path / "trace") in outcome or "trace" in outcome
                assert len(outcome.splitlines()) == 1
                assert len(outcome) < 500
    assert refused or value in (HOSTILE["2^31 - 1"], HOSTILE["a fraction"], HOSTILE["null"])


@pytest.mark.parametrize("name", EVERY)
def test_a_whole_file_of_anything_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text = EVERY[name]
    for content in (text.encode("utf-16"), text.encode("utf-32"), b"\x00" * 1000, b"\xef\xbb\xbf"):
        outcome = read(tmp_path / "trace", content, name, "skip")
        assert isinstance(outcome, str)
        assert len(outcome) < 500


LARGE = {
    "mooncake": {
        "timestamp": 0,
        "input_length": 2**31,
        "output_length": 1,
        "hash_ids": [0] * 2**22,
    },
    "conversations": {
        "id": "a",
        "requests": [
            {"t": 0, "type": "n", "in": 2**31 - 64, "out": 64, "new": [[0, 2**25 - 2]]},
        ],
    },
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_request_with_more_tokens_than_are_told_apart_is_refused(
    tmp_path: Path, name: str, on_error: OnError
) -> None:
    outcome = read(tmp_path / "trace", json.dumps(LARGE[name]).encode(), name, on_error)
    assert isinstance(outcome, str)
    assert re.search(r"2,?147,?483,?64", outcome)
