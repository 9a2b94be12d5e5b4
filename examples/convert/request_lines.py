"""Lines of requests that the converters here write, as `HYBRID_BLOCKS_RECORD` records them.

A request is a list of pieces, prompt then answer. A piece is a name for its content and a number of
tokens: equal names are equal content, from its first token on.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import blake2b

BLOCK = 16  # tokens of a digest

Piece = tuple[object, int]


def line(
    number: int,
    arrival: float,
    prompt: list[Piece],
    answer: list[Piece],
    session: int | None = None,
) -> str:
    """Return the line of one request; an arrival is in seconds."""
    fields = {
        "hybrid_blocks_request": number,
        "arrival": arrival,
        "block_tokens": BLOCK,
        "prompt_tokens": num_tokens(prompt),
        "output_tokens": num_tokens(answer),
        "blocks": "".join(_digests([*prompt, *answer])),
    }
    return json.dumps(fields if session is None else fields | {"session": session}) + "\n"


def num_tokens(pieces: Iterable[Piece]) -> int:
    """Return the tokens of pieces."""
    return sum(count for _, count in pieces)


def first_tokens(pieces: Iterable[Piece], tokens: int) -> list[Piece]:
    """Return the first tokens of pieces."""
    first: list[Piece] = []
    for name, count in pieces:
        if tokens <= 0:
            break
        first.append((name, min(count, tokens)))
        tokens -= count
    return first


def _digests(pieces: Iterable[Piece]) -> Iterator[str]:
    """Name each whole block by what lies in it."""
    block: list[tuple[object, int, int]] = []
    missing = BLOCK
    for name, count in pieces:
        begin = 0
        while count - begin >= missing:
            block.append((name, begin, missing))
            yield b64encode(blake2b(repr(block).encode(), digest_size=9).digest()).decode()
            begin += missing
            block, missing = [], BLOCK
        if begin < count:
            block.append((name, begin, count - begin))
            missing -= count - begin
