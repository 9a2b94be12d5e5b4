"""Azure LLM inference traces: CSV of ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: github.com/Azure/AzurePublicDataset (Splitwise). There are no prefix ids: nothing is shared.
"""

import math
from datetime import datetime

from hybrid_blocks.trace.lengths import Record

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


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
    record.check("ContextTokens", "GeneratedTokens")
    return record
