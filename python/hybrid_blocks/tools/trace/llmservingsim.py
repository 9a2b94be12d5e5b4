"""Prompts with their token ids, as LLMServingSim stores them: one JSON object a line.

Source: github.com/casys-kaist/LLMServingSim. Without ``output_tok_ids`` outputs are unique.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hybrid_blocks.tools.trace.builder import MAX_TOKEN_ID, TraceBuilder

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class Record(msgspec.Struct):
    """One request; the arrival is in nanoseconds."""

    input_toks: Annotated[int, msgspec.Meta(ge=1)]
    output_toks: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
    arrival_time_ns: Annotated[float, msgspec.Meta(ge=0)]
    input_tok_ids: list[TokenId]
    output_tok_ids: list[TokenId] = []


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Record:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    if len(record.input_tok_ids) != record.input_toks:
        raise ValueError(
            f"input_toks is {record.input_toks}, but there are {len(record.input_tok_ids)} "
            "input_tok_ids"
        )
    return record


def build(name: str, records: Sequence[Record]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    known = (max(*r.input_tok_ids, *r.output_tok_ids, 0) for r in records)
    builder = TraceBuilder(name, num_reserved=max(known, default=-1) + 1)
    for record in records:
        output = max(record.output_toks, 1)
        tokens = record.input_tok_ids + record.output_tok_ids[:output]
        unknown = record.input_toks + output - len(tokens)
        builder.add(
            [*((token, 1) for token in tokens), builder.fresh(unknown)],
            arrival=record.arrival_time_ns / 1e9,
            prompt_tokens=record.input_toks,
            output_tokens=output,
        )
    return builder
