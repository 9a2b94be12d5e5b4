"""aiperf: Mooncake's lines, each of them one turn of a session.

Source: the traces that NVIDIA's aiperf writes and replays (``agentic_code_gen``, Apache-2.0). A
turn's ``input_length`` and ``hash_ids`` are of what it adds: its prompt is all turns before it,
their outputs, and its own tokens. The first turn has a ``timestamp``, later ones a ``delay`` after
the turn before. A file does not say how many tokens an id stands for; its lengths do.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, Span, TraceBuilder
from hybrid_blocks.trace.errors import TraceError

TOKENS_PER_ID: Final = (512, 64, 16, 32, 128, 256, 1024)
"""Tokens that an id may stand for, the most usual first."""

_MAX_ID: Final = 2**31 // min(TOKENS_PER_ID) - 1
_Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class Record(msgspec.Struct):
    """One turn."""

    input_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKEN_ID)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)] | None = None
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)]] | None = None
    timestamp: _Milliseconds | None = None
    delay: _Milliseconds | None = None
    session_id: str | None = None


class _Session:
    """A conversation while the reader builds it: its text so far, and the request before."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.spans: list[Span] = []
        self.tokens = 0
        self.last = -1

    def say(self, spans: Sequence[Span]) -> None:
        self.spans += spans
        self.tokens += sum(count for _, count in spans)


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Record:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    ids = record.hash_ids
    if ids and not any(_fit(record, tokens) for tokens in TOKENS_PER_ID):
        raise ValueError(
            f"{record.input_length} tokens in {len(ids)} hash_ids; an id stands for "
            f"{', '.join(map(str, sorted(TOKENS_PER_ID)))} tokens"
        )
    return record


def _fit(record: Record, tokens: int) -> bool:
    return not record.hash_ids or len(record.hash_ids) == -(-record.input_length // tokens)


def build(name: str, records: Sequence[Record]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    block = max(TOKENS_PER_ID, key=lambda tokens: sum(_fit(one, tokens) for one in records))
    for number, record in enumerate(records, start=1):
        if not _fit(record, block):
            raise TraceError(
                f"request {number} of {name} has {record.input_length} tokens in "
                f"{len(record.hash_ids or ())} hash_ids; in most requests an id stands for "
                f"{block} tokens"
            )
    last_id = max((max(record.hash_ids) for record in records if record.hash_ids), default=-1)
    builder = TraceBuilder(name, num_reserved=(last_id + 1) * block)
    sessions: dict[str, _Session] = {}
    for record in records:
        session = None
        if record.session_id is not None:
            session = sessions.get(record.session_id)
            if session is None:
                session = sessions[record.session_id] = _Session(builder.new_session())
        _add(builder, record, session or _Session(-1), block)
    return builder


def _add(builder: TraceBuilder, record: Record, session: _Session, block: int) -> None:
    output = max(record.output_length or 0, 1)
    session.say(_spans(builder, record, block))
    prompt = session.tokens
    session.say([builder.fresh(output)])
    is_later = session.last >= 0 and (record.timestamp is None or record.delay is not None)
    when = record.delay if is_later else record.timestamp
    session.last = builder.add(
        session.spans,
        arrival=(when or 0.0) / 1e3,
        prompt_tokens=prompt,
        output_tokens=output,
        follows=session.last if is_later else -1,
        session=session.number,
    )


def _spans(builder: TraceBuilder, record: Record, block: int) -> list[Span]:
    if not record.hash_ids:
        return [builder.fresh(record.input_length)]
    *whole, last = record.hash_ids
    rest = record.input_length - len(whole) * block
    return [*((hash_id * block, block) for hash_id in whole), (last * block, rest)]
