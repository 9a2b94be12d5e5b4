"""Reads a trace file in any known format, and names the nearest one in an error."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from hybrid_blocks.tools.trace import conversations, lengths, recorded, sharegpt, token_ids
from hybrid_blocks.tools.trace.builder import TraceBuilder
from hybrid_blocks.tools.trace.errors import TraceError, beginning
from hybrid_blocks.tools.trace.lines import LineReader, OnError
from hybrid_blocks.tools.trace.trace import Trace

_KEY = re.compile(r'"([^"\\]+)"\s*:')


_OTHER: Final = {
    b"PAR1": "is Parquet; write it as JSON lines",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"BZh": "is compressed by bzip2; gzip and zstd are read",
    b"\xfd7zXZ": "is compressed by xz; gzip and zstd are read",
    b"\xff\xfe": "is text in UTF-16; write it in UTF-8",
    b"\xfe\xff": "is text in UTF-16; write it in UTF-8",
}
"""How files begin that are no text in UTF-8, and what to do about them."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The names that a line of a format has, or its header.

    Attributes:
        needed: in every line.
        more: in some lines.
    """

    needed: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: type[msgspec.Struct], *needed: str) -> "Fields":
        """Return the fields of a record; ``needed`` are required beside those without default."""
        fields = msgspec.structs.fields(record)
        required = tuple(field.encode_name for field in fields if field.required)
        optional = (field.encode_name for field in fields if not field.required)
        return cls((*required, *needed), tuple(name for name in optional if name not in needed))


def columns(header: bytes) -> Fields:
    """Return the columns of a header."""
    return Fields(tuple(header.decode().split(",")))


def describe_other(line: bytes) -> str | None:
    """Say what a file is that no format has; None if its first line tells nothing."""
    if line.strip() == b"{":
        return "has a JSON object in several lines; jq -c . writes each in a line of its own"
    return next((what for begins, what in _OTHER.items() if line.startswith(begins)), None)


def describe_nearest(line: bytes, formats: Mapping[str, Fields]) -> str:
    """Say which format has the most names in common with a line, and which names it lacks."""
    text = line.decode(errors="replace").strip()
    found = set(_KEY.findall(text) if text.startswith("{") else text.replace('"', "").split(","))

    def likeness(name: str) -> tuple[int, int]:
        fields = formats[name]
        known = found.intersection(fields.needed + fields.more)
        return len(known), -len(set(fields.needed) - found)

    nearest = max(formats, key=likeness)
    if not likeness(nearest)[0]:
        return "It has no field of one"
    missing = [name for name in formats[nearest].needed if name not in found]
    if not missing:
        return f"The nearest is {nearest}, in this order: {','.join(formats[nearest].needed)}"
    return f"The nearest is {nearest}, without {', '.join(missing)}"


Marks = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """How one format is recognized and read.

    Attributes:
        marks: what the first record of a file in this format contains; the most marks decide.
        parse: makes a record of a line; ``ValueError`` for a damaged one.
        build: makes requests of records.
        has_text: whether ``build`` takes a tokenizer too.
        fields: names in a line or the header; the error of a file in no format compares them.
    """

    marks: Marks
    parse: Callable[[bytes], Any]
    build: Callable[..., TraceBuilder]
    has_text: bool = False
    fields: Fields = field(default_factory=Fields)


FORMATS = {
    "mooncake": Format(
        (b'"hash_ids"', b'"input_length"'),
        token_ids.parse_mooncake,
        token_ids.build_mooncake,
        fields=Fields.of(token_ids.MooncakeRecord),
    ),
    "conversations": Format(
        (b'"requests"',),
        conversations.parse,
        conversations.build,
        fields=Fields.of(conversations.Conversation),
    ),
    "sharegpt": Format(
        (b'"conversations"',),
        sharegpt.parse,
        sharegpt.build,
        has_text=True,
        fields=Fields.of(sharegpt.Conversation),
    ),
    "llmservingsim": Format(
        (b'"input_tok_ids"',),
        token_ids.parse_llmservingsim,
        token_ids.build_llmservingsim,
        fields=Fields.of(token_ids.LLMServingSimRecord),
    ),
    "azure": Format(
        lengths.AZURE_MARKS, lengths.parse_azure, lengths.build, fields=columns(lengths.AZURE)
    ),
    "recorded": Format(
        recorded.MARKS, recorded.parse, recorded.build, fields=Fields.of(recorded.Record)
    ),
    "bailian": Format(
        (b'"hash_ids"', b'"input_length"', b'"chat_id"'),
        token_ids.parse_bailian,
        token_ids.build_bailian,
        fields=Fields.of(token_ids.BailianRecord),
    ),
    "burstgpt": Format(
        (lengths.BURSTGPT,),
        lengths.parse_burstgpt,
        lengths.build,
        fields=columns(lengths.BURSTGPT),
    ),
}
"""All formats by the name of ``--format``; a new one is a file and a row here."""

AUTO: Final = "auto"

CONVERTERS: Final[Mapping[Marks, str]] = {
    (b'"input_length"', b'"session_id"'): "aiperf",
    (b'"input_length"', b'"block_size"'): "kvcache_simulator",
    (b'"newly_append_tokens"',): "tracelab",
    (b"id,input_len,output_len,", b",prefix_len"): "tracelab",
    (b'"messages"',): "openai_log",
}
"""The scripts in ``examples/convert`` by the marks of what they read."""


def read_trace(
    path: Path,
    trace_format: str = AUTO,
    on_error: OnError = "raise",
    tokenizer: Path | None = None,
) -> Trace:
    """Read a trace file, compressed by gzip or zstd or not.

    ``tokenizer`` is a ``tokenizer.json`` for a format that holds text.
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
    if tokenizer is not None and not known.has_text:
        raise TraceError(f"--tokenizer {tokenizer}: a trace in the format {found} holds no text")
    records = list(reader.parse(known.parse))
    if not records:
        raise TraceError(_why_empty(reader))
    more = {"tokenizer": tokenizer} if known.has_text else {}
    return known.build(printable(path.name), records, **more).build(
        skipped=tuple(reader.skipped),
        cut_off_after=reader.cut_off_after,
        from_zero=True,
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
    nearest = describe_nearest(first, {name: known.fields for name, known in FORMATS.items()})
    raise TraceError(
        f"{path} is in no known format: its first line begins {beginning(first)}. {nearest}. "
        "docs/reference/traces.md lists the fields of each, and examples/replay_own_traffic.py "
        "replays a log of your own. If that line is damaged, name the --format: "
        f"{', '.join(FORMATS)}"
    )
