"""Mooncake: JSON lines with one global id for every 512 tokens of the prompt.

Source: the FAST '25 traces of github.com/kvcache-ai/Mooncake. Equal leading ids are a shared
prefix; the last id may stand for fewer than 512 tokens. Outputs have no ids: each is unique.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hybrid_blocks.tools.trace.builder import MAX_TOKEN_ID, TraceBuilder

TOKENS_PER_ID = 512
_MAX_ID = 2**31 // TOKENS_PER_ID - 1


class Record(msgspec.Struct):
    """One request; ``timestamp`` is in milliseconds."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)]]


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Record:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    needed = -(-record.input_length // TOKENS_PER_ID)
    if len(record.hash_ids) != needed:
        raise ValueError(
            f"{record.input_length} prompt tokens need {needed} hash_ids of {TOKENS_PER_ID} "
            f"tokens; the line has {len(record.hash_ids)}"
        )
    return record


def build(name: str, records: Sequence[Record]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    last_id = max((max(record.hash_ids) for record in records), default=-1)
    builder = TraceBuilder(name, num_reserved=(last_id + 1) * TOKENS_PER_ID)
    for record in records:
        prompt, output = record.input_length, max(record.output_length, 1)
        spans = [(block * TOKENS_PER_ID, TOKENS_PER_ID) for block in record.hash_ids]
        first, _ = spans.pop()
        builder.add(
            [*spans, (first, prompt - len(spans) * TOKENS_PER_ID), builder.fresh(output)],
            arrival=record.timestamp / 1e3,
            prompt_tokens=prompt,
            output_tokens=output,
        )
    return builder
