"""Reads a trace file in any known format."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hybrid_blocks.trace import (
    aiperf,
    azure,
    bailian,
    burstgpt,
    conversations,
    kvcache_simulator,
    lengths,
    llmservingsim,
    mooncake,
    openai_log,
    recorded,
    sharegpt,
    tracelab,
    weka,
)
from hybrid_blocks.trace.builder import TraceBuilder
from hybrid_blocks.trace.errors import TraceError
from hybrid_blocks.trace.lines import LineReader, OnError
from hybrid_blocks.trace.nearest import (
    Fields,
    beginning,
    columns,
    describe_nearest,
    describe_other,
)
from hybrid_blocks.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Format:
    """How one format is recognized and read.

    Attributes:
        mark: what the first record of a file in this format contains.
        parse: makes a record of a line; ``ValueError`` for a damaged one.
        build: makes requests of records.
        also: what the record contains besides, where another format has the same mark.
        has_text: whether ``build`` takes a tokenizer too.
        fields: names in a line or the header; the error of a file in no format compares them.
    """

    mark: bytes
    parse: Callable[[bytes], Any]
    build: Callable[..., TraceBuilder]
    also: bytes = b""
    has_text: bool = False
    fields: Fields = field(default_factory=Fields)


FORMATS = {
    "mooncake": Format(
        b'"hash_ids"', mooncake.parse, mooncake.build, fields=Fields.of(mooncake.Record)
    ),
    "conversations": Format(
        b'"requests"',
        conversations.parse,
        conversations.build,
        fields=Fields.of(conversations.Conversation),
    ),
    "sharegpt": Format(
        b'"conversations"',
        sharegpt.parse,
        sharegpt.build,
        has_text=True,
        fields=Fields.of(sharegpt.Conversation),
    ),
    "llmservingsim": Format(
        b'"input_tok_ids"',
        llmservingsim.parse,
        llmservingsim.build,
        fields=Fields.of(llmservingsim.Record),
    ),
    "azure": Format(azure.MARK, azure.parse, lengths.build, fields=columns(azure.HEADER)),
    "recorded": Format(
        recorded.MARK, recorded.parse, recorded.build, fields=Fields.of(recorded.Record)
    ),
    "weka": Format(
        b'"requests"',
        weka.parse,
        conversations.build,
        also=b'"hash_ids"',
        fields=Fields.of(weka.Record, "hash_ids"),
    ),
    "bailian": Format(
        b'"hash_ids"',
        bailian.parse,
        bailian.build,
        also=b'"chat_id"',
        fields=Fields.of(bailian.Record),
    ),
    "tracelab": Format(
        b'"newly_append_tokens"',
        tracelab.parse,
        tracelab.build,
        fields=Fields.of(tracelab.Record),
    ),
    "tracelab-csv": Format(
        tracelab.HEADER, tracelab.parse_csv, tracelab.build, fields=columns(tracelab.HEADER)
    ),
    "burstgpt": Format(
        burstgpt.HEADER, burstgpt.parse, lengths.build, fields=columns(burstgpt.HEADER)
    ),
    "openai": Format(
        b'"messages"', openai_log.parse, openai_log.build, has_text=True, fields=openai_log.FIELDS
    ),
    "aiperf": Format(
        b'"input_length"',
        aiperf.parse,
        aiperf.build,
        also=b'"session_id"',
        fields=Fields.of(aiperf.Record, "session_id"),
    ),
    "kvcache-simulator": Format(
        b'"hash_ids"',
        kvcache_simulator.parse,
        kvcache_simulator.build,
        also=b'"block_size"',
        fields=Fields.of(kvcache_simulator.Record),
    ),
}
"""All formats by the name of ``--format``; a new one is a file and a row here."""

AUTO: Final = "auto"


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
    Raises ``TraceError`` where no format has the name or the mark, and for a file that cannot be
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
    reader = LineReader(path, "skip")
    first = reader.first()
    if not first:
        raise TraceError(_why_empty(reader))
    found = [
        (not known.also, name)
        for name, known in FORMATS.items()
        if known.mark in first and known.also in first
    ]
    if found:
        return min(found, key=lambda one: one[0])[1]
    if other := describe_other(first):
        raise TraceError(f"{path} {other}")
    nearest = describe_nearest(first, {name: known.fields for name, known in FORMATS.items()})
    raise TraceError(
        f"{path} is in no known format: its first line begins {beginning(first)}. {nearest}. "
        "docs/reference/traces.md lists the fields of each, and examples/replay_own_traffic.py "
        "replays a log of your own. If that line is damaged, name the --format: "
        f"{', '.join(FORMATS)}"
    )
