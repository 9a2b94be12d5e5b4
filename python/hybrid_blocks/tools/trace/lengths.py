"""Azure's traces, which hold arrivals and lengths alone; their requests share nothing.

Sources: github.com/Azure/AzurePublicDataset, of 2023 and 2024, and its multimodal trace of 2025,
which has ``NumImages`` in its second column.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from hybrid_blocks.tools.trace.builder import MAX_TOKEN_ID, TraceBuilder
from hybrid_blocks.tools.trace.errors import shown

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens"
_AZURE_WITH_IMAGES = b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
AZURE_MARKS = (b"TIMESTAMP", b",ContextTokens,GeneratedTokens")
"""In both headers."""


class Record(msgspec.Struct):
    """One request; ``timestamp`` is in seconds."""

    timestamp: float
    prompt_tokens: int
    output_tokens: int


def parse_azure(line: bytes) -> Record | None:
    """Read one line; a ``ValueError`` says what is wrong with it, a header gives nothing."""
    if line.strip() in {AZURE, _AZURE_WITH_IMAGES}:
        return None
    fields = line.decode().strip().split(",")
    if len(fields) not in {3, 4}:
        raise ValueError(f"expected {AZURE.decode()}, found {len(fields)} fields")
    _, prompt, output = AZURE.decode().split(",")
    return _record(_time(fields[0]), {prompt: fields[-2], output: fields[-1]})


def build(name: str, records: Sequence[Record | None]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    builder = TraceBuilder(name)
    for record in filter(None, records):
        output = max(record.output_tokens, 1)
        builder.add(
            [builder.fresh(record.prompt_tokens + output)],
            arrival=record.timestamp,
            prompt_tokens=record.prompt_tokens,
            output_tokens=output,
        )
    return builder


def _record(time: float, lengths: dict[str, str]) -> Record:
    prompt, output = (_whole(text, column) for column, text in lengths.items())
    if prompt < 1 or output < 0 or max(prompt, output) > MAX_TOKEN_ID:
        prompt_column, output_column = lengths
        raise ValueError(
            f"{prompt_column} is {prompt} and {output_column} is {output}; at least 1 and 0 are "
            f"needed, at most {MAX_TOKEN_ID:,}"
        )
    return Record(time, prompt, output)


def _whole(text: str, column: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{column} is {shown(text)}, no whole number") from None


def _time(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"TIMESTAMP is {shown(text)}, no time such as 2023-11-16 18:15:46.68"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
