"""Azure LLM inference traces: CSV of ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: github.com/Azure/AzurePublicDataset (Splitwise). There are no prefix ids: nothing is shared.
"""

import math
from collections.abc import Sequence
from datetime import datetime

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, TraceBuilder

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


class Record(msgspec.Struct):
    """One request; ``timestamp`` is in seconds of the epoch."""

    timestamp: float
    context_tokens: int
    generated_tokens: int


def parse(line: bytes) -> Record | None:
    """Read one line; a ``ValueError`` says what is wrong with it, the header gives nothing."""
    if line.strip() == HEADER:
        return None
    fields = line.decode().strip().split(",")
    if len(fields) != 3:
        raise ValueError(f"expected {HEADER.decode()}, found {len(fields)} fields")
    when, fraction = fields[0][:19], fields[0][19:] or "0"
    record = Record(
        datetime.fromisoformat(f"{when}+00:00").timestamp() + float(fraction),
        int(fields[1]),
        int(fields[2]),
    )
    if not math.isfinite(record.timestamp):
        raise ValueError(f"TIMESTAMP {fields[0]} is no time")
    tokens = record.context_tokens, record.generated_tokens
    if tokens[0] < 1 or tokens[1] < 0 or max(tokens) > MAX_TOKEN_ID:
        raise ValueError(
            f"ContextTokens is {tokens[0]} and GeneratedTokens is {tokens[1]}; at least 1 and 0 "
            f"are needed, at most {MAX_TOKEN_ID:,}"
        )
    return record


def build(name: str, records: Sequence[Record | None]) -> TraceBuilder:
    """Turn records into requests; the first arrives at 0, an output counts at least one token."""
    builder = TraceBuilder(name)
    requests = [record for record in records if record is not None]
    start = min((record.timestamp for record in requests), default=0.0)
    for record in requests:
        output = max(record.generated_tokens, 1)
        builder.add(
            [builder.fresh(record.context_tokens + output)],
            arrival=record.timestamp - start,
            prompt_tokens=record.context_tokens,
            output_tokens=output,
        )
    return builder
