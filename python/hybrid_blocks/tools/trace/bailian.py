"""Alibaba Bailian: JSON lines with a hash for every 16 tokens of the prompt, each block by itself.

Source: the qwen-bailian-usagetraces-anon data set. A hash is of a block's own tokens, so that one
block behind two prefixes has one hash, and no cache could find the second. The reader therefore
gives each block an id of its own for each prefix. Outputs have no ids: each is unique.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hybrid_blocks.tools.trace.builder import MAX_TOKEN_ID, Span, TraceBuilder

TOKENS_PER_ID = 16

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKEN_ID)]


class Record(msgspec.Struct):
    """One request; ``timestamp`` is in seconds, ``parent_chat_id`` is -1 for a first turn."""

    chat_id: int | str
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Tokens
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
    hash_ids: list[int | str]
    parent_chat_id: int | str = -1


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Record:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    whole, rest = divmod(record.input_length, TOKENS_PER_ID)
    if len(record.hash_ids) not in {whole, whole + (rest > 0)}:
        raise ValueError(
            f"{record.input_length} prompt tokens fill {whole} hash_ids of {TOKENS_PER_ID} tokens; "
            f"the line has {len(record.hash_ids)}"
        )
    return record


def build(name: str, records: Sequence[Record]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    chains: dict[tuple[int, int | str], int] = {}
    chained = []
    for record in records:
        ids, before = [], -1
        for hash_id in record.hash_ids:
            before = chains.setdefault((before, hash_id), len(chains))
            ids.append(before)
        chained.append(ids)
    builder = TraceBuilder(name, num_reserved=len(chains) * TOKENS_PER_ID)
    sessions: dict[int | str, int] = {}
    for record, ids in zip(records, chained, strict=True):
        session = sessions.get(record.parent_chat_id)
        if session is None:
            session = builder.new_session()
        sessions[record.chat_id] = session
        output = max(record.output_length, 1)
        builder.add(
            [*_prompt(builder, ids, record.input_length), builder.fresh(output)],
            arrival=record.timestamp,
            prompt_tokens=record.input_length,
            output_tokens=output,
            session=session,
        )
    return builder


def _prompt(builder: TraceBuilder, ids: Sequence[int], tokens: int) -> list[Span]:
    """Spans of a prompt; the last id may stand for fewer tokens, or tokens may have none."""
    spans = [
        (block * TOKENS_PER_ID, min(TOKENS_PER_ID, tokens - at * TOKENS_PER_ID))
        for at, block in enumerate(ids)
    ]
    left = tokens - sum(count for _, count in spans)
    return [*spans, builder.fresh(left)] if left else spans
