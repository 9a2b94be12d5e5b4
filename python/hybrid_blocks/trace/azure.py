"""Azure LLM inference traces: CSV of ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: github.com/Azure/AzurePublicDataset (Splitwise). There are no prefix ids: nothing is shared.
"""

import math
from datetime import datetime

from hybrid_blocks.trace.lengths import Record, whole
from hybrid_blocks.trace.value import shown

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


def parse(line: bytes) -> Record | None:
    """Read one line; a ``ValueError`` says what is wrong with it, the header gives nothing."""
    if line.strip() == HEADER:
        return None
    fields = line.decode().strip().split(",")
    if len(fields) != 3:
        raise ValueError(f"expected {HEADER.decode()}, found {len(fields)} fields")
    names = HEADER.decode().split(",")
    record = Record(_time(fields[0]), whole(fields[1], names[1]), whole(fields[2], names[2]))
    record.check(*names[1:])
    return record


def _time(text: str) -> float:
    when, fraction = text[:19], text[19:] or "0"
    try:
        time = datetime.fromisoformat(f"{when}+00:00").timestamp() + float(fraction)
    except ValueError:
        time = math.nan
    if not math.isfinite(time):
        raise ValueError(f"TIMESTAMP is {shown(text)}, no time such as 2023-11-16 18:15:46.68")
    return time
