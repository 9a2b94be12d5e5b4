"""Traces that hold arrivals and lengths alone; their requests share nothing."""

import math
from collections.abc import Sequence

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, TraceBuilder
from hybrid_blocks.trace.value import shown


class Record(msgspec.Struct):
    """One request; ``timestamp`` is in seconds."""

    timestamp: float
    prompt_tokens: int
    output_tokens: int
    session: str | None = None

    def check(self, prompt_column: str, output_column: str) -> None:
        """Raise a ``ValueError`` with the columns' names where a length is out of range."""
        tokens = self.prompt_tokens, self.output_tokens
        if tokens[0] < 1 or tokens[1] < 0 or max(tokens) > MAX_TOKEN_ID:
            raise ValueError(
                f"{prompt_column} is {tokens[0]} and {output_column} is {tokens[1]}; at least 1 "
                f"and 0 are needed, at most {MAX_TOKEN_ID:,}"
            )


def whole(text: str, column: str) -> int:
    """Read a whole number of a column; the ``ValueError`` names both."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{column} is {shown(text)}, no whole number") from None


def elapsed(text: str, column: str) -> float:
    """Read a time of a column, in any unit; the ``ValueError`` names both."""
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not 0 <= time < math.inf:
        raise ValueError(f"{column} is {shown(text)}, no time")
    return time


def build(name: str, records: Sequence[Record | None]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    builder = TraceBuilder(name)
    sessions: dict[str, int] = {}
    for record in records:
        if record is None:
            continue
        session = -1
        if record.session is not None:
            if record.session not in sessions:
                sessions[record.session] = builder.new_session()
            session = sessions[record.session]
        output = max(record.output_tokens, 1)
        builder.add(
            [builder.fresh(record.prompt_tokens + output)],
            arrival=record.timestamp,
            prompt_tokens=record.prompt_tokens,
            output_tokens=output,
            session=session,
        )
    return builder
