"""TraceLab: rounds of coding agents, with the tokens that a round repeats and those that it adds.

Source: github.com/uw-syfi/TraceLab, its JSON lines (one a round), and the CSV that it exports for
simulators. There are no ids. A round repeats the beginning of its session's text so far, as long
as ``prefix_tokens`` says; the rest of its prompt is new. The prefix is what the provider found in
its own cache, so text that the provider had lost counts as new.

A session's first round arrives at its time; a later one follows the round before it, after the
pause between their events, or after the wait for tools.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, Span, TraceBuilder
from hybrid_blocks.trace.lengths import elapsed, whole

HEADER = b"id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len"
SESSION_GAP = 1.0
"""Seconds between sessions without times."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class Event(msgspec.Struct):
    """Something that happened in a round."""

    timestamp: datetime | None = None


class Record(msgspec.Struct):
    """One round; times are in seconds, of the epoch or of the trace."""

    session_id: str
    round_index: int
    prefix_tokens: Tokens
    newly_append_tokens: Tokens
    output_tokens: Tokens
    timing_events: list[Event] | None = None
    begins: float | None = None
    ends: float | None = None
    wait_after: float | None = None


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Record:
    """Read one line of JSON; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    times = [event.timestamp.timestamp() for event in record.timing_events or () if event.timestamp]
    record.begins, record.ends = min(times, default=None), max(times, default=None)
    record.timing_events = None
    return _checked(record)


def parse_csv(line: bytes) -> Record | None:
    """Read one line of CSV, None of the header; a ``ValueError`` says what is wrong with it."""
    if line.strip() == HEADER:
        return None
    fields = line.decode().strip().split(",")
    if len(fields) != 7:
        raise ValueError(f"expected {HEADER.decode()}, found {len(fields)} fields")
    session, added, output, arrival, number, wait, prefix = fields
    return _checked(
        Record(
            session_id=session,
            round_index=whole(number, "round_idx"),
            prefix_tokens=whole(prefix, "prefix_len"),
            newly_append_tokens=whole(added, "input_len"),
            output_tokens=whole(output, "output_len"),
            begins=elapsed(arrival, "arrival_time") / 1e3,
            wait_after=elapsed(wait, "tool_wait_after_ms") / 1e3,
        )
    )


def _checked(record: Record) -> Record:
    tokens = record.prefix_tokens, record.newly_append_tokens, record.output_tokens
    if min(tokens) < 0 or sum(tokens) > MAX_TOKEN_ID or not sum(tokens[:2]):
        raise ValueError(
            f"a round of {tokens[0]} repeated, {tokens[1]} added and {tokens[2]} generated tokens; "
            f"a prompt has at least 1, all together {MAX_TOKEN_ID:,} at most"
        )
    return record


def build(name: str, records: Sequence[Record | None]) -> TraceBuilder:
    """Turn rounds into requests; an output counts at least one token."""
    rounds: dict[str, list[Record]] = {}
    for record in records:
        if record is not None:
            rounds.setdefault(record.session_id, []).append(record)
    known = [one.begins for own in rounds.values() for one in own if one.begins is not None]
    start = min(known, default=0.0)
    builder = TraceBuilder(name)
    for index, own in enumerate(rounds.values()):
        own.sort(key=lambda record: record.round_index)
        first = index * SESSION_GAP if own[0].begins is None else own[0].begins - start
        _add_session(builder, own, first)
    return builder


def _add_session(builder: TraceBuilder, rounds: Sequence[Record], start: float) -> None:
    session, follows = builder.new_session(), -1
    text: list[Span] = []
    before: Record | None = None
    for record in rounds:
        spans = _beginning(builder, text, record.prefix_tokens)
        if record.newly_append_tokens:
            spans.append(builder.fresh(record.newly_append_tokens))
        output = max(record.output_tokens, 1)
        text = [*spans, builder.fresh(output)]
        follows = builder.add(
            text,
            arrival=start if before is None else _pause(before, record),
            prompt_tokens=record.prefix_tokens + record.newly_append_tokens,
            output_tokens=output,
            follows=follows,
            session=session,
        )
        before = record


def _beginning(builder: TraceBuilder, text: Sequence[Span], tokens: int) -> list[Span]:
    """Cut the session's text; tokens of a longer prefix are unique."""
    spans: list[Span] = []
    for first, count in text:
        if tokens <= 0:
            break
        spans.append((first, min(count, tokens)))
        tokens -= count
    return [*spans, builder.fresh(tokens)] if tokens > 0 else spans


def _pause(before: Record, record: Record) -> float:
    if before.wait_after is not None:
        return before.wait_after
    if before.ends is None or record.begins is None:
        return 0.0
    return max(record.begins - before.ends, 0.0)
