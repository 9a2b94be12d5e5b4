"""kvcache-simulator: JSON lines of block ids, each line with the tokens of a block.

Source: the input of kvcache.ai's hit rate simulator (PyPI ``kvcache-simulator``). Equal leading ids
are a shared prefix; the last id may stand for fewer tokens. Outputs have no ids: each is unique.
Without ``timestamp`` a request arrives each second.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, TraceBuilder
from hybrid_blocks.trace.errors import TraceError

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKEN_ID)]


class Record(msgspec.Struct):
    """One request; ``timestamp`` is in milliseconds."""

    block_size: Tokens
    hash_ids: list[int | str]
    input_length: Tokens
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)] = 0
    timestamp: Annotated[float, msgspec.Meta(ge=0)] | None = None
    block_tokens: list[Tokens] | None = None

    @property
    def tokens(self) -> list[int]:
        """Tokens of each block."""
        if self.block_tokens is not None:
            return self.block_tokens
        whole = [self.block_size] * (len(self.hash_ids) - 1)
        return [*whole, self.input_length - self.block_size * len(whole)]


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Record:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    needed = -(-record.input_length // record.block_size)
    if record.block_tokens is None and len(record.hash_ids) != needed:
        raise ValueError(
            f"{record.input_length} prompt tokens need {needed} hash_ids of {record.block_size} "
            f"tokens; the line has {len(record.hash_ids)}"
        )
    if record.block_tokens is not None:
        _check_tokens(record, record.block_tokens)
    return record


def _check_tokens(record: Record, tokens: Sequence[int]) -> None:
    if len(tokens) != len(record.hash_ids):
        raise ValueError(f"{len(tokens)} block_tokens are of {len(record.hash_ids)} hash_ids")
    if max(tokens) > record.block_size:
        raise ValueError(
            f"block_tokens has {max(tokens)}, more than the block_size of {record.block_size}"
        )
    if sum(tokens) != record.input_length:
        raise ValueError(f"block_tokens add up to {sum(tokens)} of {record.input_length} tokens")


def build(name: str, records: Sequence[Record]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    block = records[0].block_size
    for number, record in enumerate(records, start=1):
        if record.block_size != block:
            raise TraceError(
                f"{name}: block_size is {block} in request 1 and {record.block_size} in request "
                f"{number}"
            )
    # A number and its text are the same id.
    ids: dict[str, int] = {}
    for record in records:
        for hash_id in record.hash_ids:
            ids.setdefault(str(hash_id), len(ids))
    builder = TraceBuilder(name, num_reserved=len(ids) * block)
    for index, record in enumerate(records):
        output = max(record.output_length, 1)
        spans = [
            (ids[str(hash_id)] * block, tokens)
            for hash_id, tokens in zip(record.hash_ids, record.tokens, strict=True)
        ]
        builder.add(
            [*spans, builder.fresh(output)],
            arrival=index if record.timestamp is None else record.timestamp / 1e3,
            prompt_tokens=record.input_length,
            output_tokens=output,
        )
    return builder
