"""Formats that give prompts as numbers: Mooncake and LLMServingSim, in JSON lines.

- Mooncake (the FAST '25 traces of github.com/kvcache-ai/Mooncake) has one global id for every 512
  tokens of the prompt. Equal leading ids are a shared prefix; the last id may stand for fewer.
- LLMServingSim (github.com/casys-kaist/LLMServingSim) has the ids of all tokens.

Outputs without ids are unique.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hybrid_blocks.tools.trace.builder import MAX_TOKEN_ID, TraceBuilder

TOKENS_PER_MOONCAKE_ID = 512
_MAX_ID = 2**31 // TOKENS_PER_MOONCAKE_ID - 1


class MooncakeRecord(msgspec.Struct):
    """One request; ``timestamp`` is in milliseconds."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)]]


_MOONCAKE_DECODER = msgspec.json.Decoder(MooncakeRecord)


def parse_mooncake(line: bytes) -> MooncakeRecord:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _MOONCAKE_DECODER.decode(line)
    needed = -(-record.input_length // TOKENS_PER_MOONCAKE_ID)
    if len(record.hash_ids) != needed:
        raise ValueError(
            f"{record.input_length} prompt tokens need {needed} hash_ids of "
            f"{TOKENS_PER_MOONCAKE_ID} tokens; the line has {len(record.hash_ids)}"
        )
    return record


def build_mooncake(name: str, records: Sequence[MooncakeRecord]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    last_id = max((max(record.hash_ids) for record in records), default=-1)
    builder = TraceBuilder(name, num_reserved=(last_id + 1) * TOKENS_PER_MOONCAKE_ID)
    for record in records:
        prompt, output = record.input_length, max(record.output_length, 1)
        spans = [
            (block * TOKENS_PER_MOONCAKE_ID, TOKENS_PER_MOONCAKE_ID) for block in record.hash_ids
        ]
        first, _ = spans.pop()
        builder.add(
            [*spans, (first, prompt - len(spans) * TOKENS_PER_MOONCAKE_ID), builder.fresh(output)],
            arrival=record.timestamp / 1e3,
            prompt_tokens=prompt,
            output_tokens=output,
        )
    return builder


TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class LLMServingSimRecord(msgspec.Struct):
    """One request; the arrival is in nanoseconds."""

    input_toks: Annotated[int, msgspec.Meta(ge=1)]
    output_toks: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
    arrival_time_ns: Annotated[float, msgspec.Meta(ge=0)]
    input_tok_ids: list[TokenId]
    output_tok_ids: list[TokenId] = []


_LLMSERVINGSIM_DECODER = msgspec.json.Decoder(LLMServingSimRecord)


def parse_llmservingsim(line: bytes) -> LLMServingSimRecord:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _LLMSERVINGSIM_DECODER.decode(line)
    if len(record.input_tok_ids) != record.input_toks:
        raise ValueError(
            f"input_toks is {record.input_toks}, but there are {len(record.input_tok_ids)} "
            "input_tok_ids"
        )
    return record


def build_llmservingsim(name: str, records: Sequence[LLMServingSimRecord]) -> TraceBuilder:
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
