"""Lines of recorded traffic, as their reader takes them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hybrid_blocks._core import RecordLines
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.recording.recorder import Finished
from hybrid_blocks.tools.trace.recorded import Record, parse, split_digests

KEY = bytes(range(16))
HASHES = [bytes([number]) * 32 for number in range(3)]
PLAIN = Finished(1000.25, 16, 48, 2, None, HASHES, None, None, priority=0, aborted=False)


def records(*requests: Finished) -> list[Record]:
    lines = RecordLines(KEY, 1000.0).encode(list(requests)).splitlines()
    found = [parse(line) for line in lines]
    # A field that has its default is left out, as the format's own writer does.
    fields: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]
    assert fields == [msgspec.json.decode(msgspec.json.encode(one)) for one in found]
    return found


def test_a_line_says_what_the_engine_noted() -> None:
    names: Any = {"session": 'a "b"', "adapter": "names an adapter"}
    times: Any = {"scheduled": 1000.5, "first_token": 1001.0, "finished": 1002.125001}
    full = PLAIN._replace(found_tokens=32, priority=-3, aborted=True, **names, **times)
    (found,) = records(full)
    sizes: Any = {"block_tokens": 16, "prompt_tokens": 48, "output_tokens": 2, "found_tokens": 32}
    since: Any = {"scheduled": 0.25, "first_token": 0.75, "finished": 1.875001}
    blocks = "4JFJ6o+FW8jxAJEVL5KrkX7+CUpeYZ/jTGWN"
    counted: Any = {"number": 0, "session": 0, "adapter": 0, "priority": -3, "aborted": True}
    assert found == Record(arrival=0.25, blocks=blocks, **sizes, **counted, **since)
    assert len(split_digests(found.blocks)) == len(HASHES)


def test_requests_sessions_and_adapters_are_counted_over_all_calls() -> None:
    lines = RecordLines(KEY, 0.0)
    names = ["a", "b", None, "a"]
    text = b"".join(
        lines.encode([PLAIN._replace(session=it, adapter=it and f"of {it}")]) for it in names
    )
    found = [parse(line) for line in text.splitlines()]
    assert [one.number for one in found] == [0, 1, 2, 3]
    assert [one.session for one in found] == [one.adapter for one in found] == [0, 1, None, 0]


def test_a_name_that_no_utf_8_has_is_counted_too() -> None:
    first, again, other = records(
        *(PLAIN._replace(session=name) for name in ("\ud800", "\ud800", "b"))
    )
    assert (first.session, again.session, other.session) == (0, 0, 1)


def test_no_time_is_before_the_one_that_it_counts_from() -> None:
    (early,) = records(PLAIN._replace(arrival=999.0, scheduled=998.0, finished=1000.0))
    assert (early.arrival, early.scheduled, early.finished) == (0.0, 0.0, 1.0)


def test_hashes_of_any_sequence_are_taken() -> None:
    assert records(PLAIN) == records(PLAIN._replace(hashes=tuple(HASHES)))
    assert records(PLAIN._replace(hashes=[]))[0].blocks == ""
    assert RecordLines(KEY, 0.0).encode([]) == b""


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a key has 16 bytes, and this one 0"):
        RecordLines(b"", 0.0)
    lines = RecordLines(KEY, 0.0)
    numbers: Any = [3]
    for wrong in (PLAIN._replace(hashes=numbers), PLAIN._replace(prompt_tokens=-1), tmp_path):
        with pytest.raises((TypeError, OverflowError)):
            lines.encode([wrong])
    assert [name for name in dir(lines) if not name.startswith("__")] == ["encode"]
    assert KEY.hex() not in repr(lines)
