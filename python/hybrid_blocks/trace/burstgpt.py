"""BurstGPT: CSV of arrivals and lengths, with sessions in its third part.

Source: github.com/HPMLL/BurstGPT. There are no prefix ids: nothing is shared.
"""

from collections.abc import Sequence

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, TraceBuilder

HEADER = b"Request tokens,Response tokens"
_COLUMNS = {6: (None, 2, 3), 8: (1, 4, 5)}
"""Columns of session, prompt and answer, by how many columns a line has."""


class Record(msgspec.Struct):
    """One request; ``timestamp`` is in seconds."""

    timestamp: float
    session: str | None
    prompt_tokens: int
    output_tokens: int


def parse(line: bytes) -> Record | None:
    """Read one line; a ``ValueError`` says what is wrong with it, the header gives nothing."""
    if HEADER in line:
        return None
    fields = line.decode().strip().split(",")
    if len(fields) not in _COLUMNS:
        raise ValueError(f"6 or 8 fields are expected, found {len(fields)}")
    session, prompt, output = _COLUMNS[len(fields)]
    record = Record(
        float(fields[0]),
        None if session is None else fields[session] or None,
        int(fields[prompt]),
        int(fields[output]),
    )
    if not 0 <= record.timestamp < float("inf"):
        raise ValueError(f"Timestamp {fields[0]} is no time")
    tokens = record.prompt_tokens, record.output_tokens
    if tokens[0] < 1 or tokens[1] < 0 or max(tokens) > MAX_TOKEN_ID:
        raise ValueError(
            f"Request tokens is {tokens[0]} and Response tokens is {tokens[1]}; at least 1 and 0 "
            f"are needed, at most {MAX_TOKEN_ID:,}"
        )
    return record


def build(name: str, records: Sequence[Record | None]) -> TraceBuilder:
    """Turn records into requests; the first arrives at 0, an output counts at least one token."""
    builder = TraceBuilder(name)
    requests = [record for record in records if record is not None]
    start = min((record.timestamp for record in requests), default=0.0)
    sessions: dict[str, int] = {}
    for record in requests:
        session = -1
        if record.session is not None:
            if record.session not in sessions:
                sessions[record.session] = builder.new_session()
            session = sessions[record.session]
        output = max(record.output_tokens, 1)
        builder.add(
            [builder.fresh(record.prompt_tokens + output)],
            arrival=record.timestamp - start,
            prompt_tokens=record.prompt_tokens,
            output_tokens=output,
            session=session,
        )
    return builder
