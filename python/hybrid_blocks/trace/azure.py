"""Azure LLM inference traces: CSV of ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: github.com/Azure/AzurePublicDataset, 2023 and 2024; the multimodal trace of 2025 has
``NumImages`` in its second column. There are no prefix ids: nothing is shared.
"""

from datetime import UTC, datetime

from hybrid_blocks.trace.lengths import Record, whole
from hybrid_blocks.trace.value import shown

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
HEADER_WITH_IMAGES = b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
MARK = b",ContextTokens,GeneratedTokens"
"""The end of both headers."""


def parse(line: bytes) -> Record | None:
    """Read one line; a ``ValueError`` says what is wrong with it, the header gives nothing."""
    if line.strip() in {HEADER, HEADER_WITH_IMAGES}:
        return None
    fields = line.decode().strip().split(",")
    if len(fields) not in {3, 4}:
        raise ValueError(f"expected {HEADER.decode()}, found {len(fields)} fields")
    _, prompt, output = HEADER.decode().split(",")
    record = Record(_time(fields[0]), whole(fields[-2], prompt), whole(fields[-1], output))
    record.check(prompt, output)
    return record


def _time(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"TIMESTAMP is {shown(text)}, no time such as 2023-11-16 18:15:46.68"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
