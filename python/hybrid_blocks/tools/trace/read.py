"""Reads a trace file in any known format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hybrid_blocks.tools.trace import conversations, lengths, recorded, sharegpt, token_ids
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hybrid_blocks.tools.trace.errors import TraceError, beginning
from hybrid_blocks.tools.trace.lines import LineReader, OnError
from hybrid_blocks.tools.trace.trace import Trace

_OTHER: Final = {
    b"PAR1": "is Parquet; write it as JSON lines",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"BZh": "is compressed by bzip2; gzip and zstd are read",
    b"\xfd7zXZ": "is compressed by xz; gzip and zstd are read",
    b"\xff\xfe": "is text in UTF-16; write it in UTF-8",
    b"\xfe\xff": "is text in UTF-16; write it in UTF-8",
}
"""How files begin that are no text in UTF-8, and what to do about them."""


def describe_other(line: bytes) -> str | None:
    """Say what a file is that no format has; None if its first line tells nothing."""
    if line.strip() == b"{":
        return "has a JSON object in several lines; jq -c . writes each in a line of its own"
    return next((what for begins, what in _OTHER.items() if line.startswith(begins)), None)


Marks = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """How one format is recognized and read.

    Attributes:
        marks: what the first record of a file in this format contains; the most marks decide.
        parse: makes a record of a line; ``ValueError`` for a damaged one.
        build: makes requests of records.
    """

    marks: Marks
    parse: Callable[[bytes], Any]
    build: Callable[..., TraceBuilder]


FORMATS = {
    "mooncake": Format(
        (b'"hash_ids"', b'"input_length"'), token_ids.parse_mooncake, token_ids.build_mooncake
    ),
    "conversations": Format((b'"requests"',), conversations.parse, conversations.build),
    "sharegpt": Format((b'"conversations"',), sharegpt.parse, sharegpt.build),
    "llmservingsim": Format(
        (b'"input_tok_ids"',), token_ids.parse_llmservingsim, token_ids.build_llmservingsim
    ),
    "azure": Format(lengths.AZURE_MARKS, lengths.parse_azure, lengths.build),
    "recorded": Format(recorded.MARKS, recorded.parse, recorded.build),
}
"""All formats by the name of ``--format``; a new one is a file and a row here."""

AUTO: Final = "auto"

CONVERTERS: Final[Mapping[Marks, str]] = {
    (b'"input_length"', b'"session_id"'): "aiperf",
    (b'"input_length"', b'"block_size"'): "kvcache_simulator",
    (b'"newly_append_tokens"',): "tracelab",
    (b"id,input_len,output_len,", b",prefix_len"): "tracelab",
    (b'"messages"',): "openai_log",
    (b'"hash_ids"', b'"chat_id"'): "bailian",
    (b"Request tokens,Response tokens",): "burstgpt",
}
"""The scripts in ``examples/convert`` by the marks of what they read."""


def read_trace(path: Path, trace_format: str = AUTO, on_error: OnError = "raise") -> Trace:
    """Read a trace file, compressed by gzip or zstd or not.

    ``trace_format`` is a key of `FORMATS`, or ``"auto"`` to tell it by the first line.
    ``on_error="skip"`` continues after a damaged line and names it in ``skipped``. Of a compressed
    file that was cut off it takes the lines before. ``"raise"`` stops with `DamagedLineError`.
    Raises ``TraceError`` where no format has the name or the marks, and for a file that cannot be
    read.
    """
    if trace_format not in (AUTO, *FORMATS):
        raise TraceError(
            f"{trace_format!r} is no trace format; known are {AUTO}, {', '.join(FORMATS)}"
        )
    reader = LineReader(path, on_error)
    found = detect_format(path) if trace_format == AUTO else trace_format
    known = FORMATS[found]
    records = list(reader.parse(known.parse))
    if not records:
        raise TraceError(_why_empty(reader))
    return known.build(printable(path.name), records).build(
        skipped=tuple(reader.skipped), cut_off_after=reader.cut_off_after, from_zero=True
    )


def printable(name: str) -> str:
    """Name of a file whose bytes need not be UTF-8."""
    return name.encode(errors="backslashreplace").decode()


def _why_empty(reader: LineReader) -> str:
    """Say why a file has no request."""
    if reader.damaged is not None:
        return f"{reader.damaged}; no other line holds a request"
    if reader.cut_off_after is not None:
        return f"{reader.path}: its compressed data ends or breaks before the first line does"
    return f"{reader.path} holds no request"


def detect_format(path: Path) -> str:
    """Tell the format of a file by its first line."""
    if any(path.glob("chunk-*-trace.csv")):
        raise TraceError(
            f"{path} is a folder of ServeGen's clients: python examples/convert/servegen.py "
            f"{path} > requests.csv draws a trace of them"
        )
    reader = LineReader(path, "skip")
    first = reader.first()
    if not first:
        raise TraceError(_why_empty(reader))
    for marks, converter in CONVERTERS.items():
        if all(mark in first for mark in marks):
            raise TraceError(
                f"{path} is read after python examples/convert/{converter}.py < {path} > "
                "requests.jsonl, which writes a trace"
            )
    found = {
        name: len(known.marks)
        for name, known in FORMATS.items()
        if all(mark in first for mark in known.marks)
    }
    if found:
        return max(found, key=found.__getitem__)
    if other := describe_other(first):
        raise TraceError(f"{path} {other}")
    raise TraceError(
        f"{path} is in no known format: its first line begins {beginning(first)}. "
        "docs/reference/traces.md lists the fields of each, and examples/replay_own_traffic.py "
        "replays a log of your own. If that line is damaged, name the --format: "
        f"{', '.join(FORMATS)}"
    )
