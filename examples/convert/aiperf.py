"""Make requests of aiperf's sessions, such as its ``agentic_code_gen``.

    python examples/convert/aiperf.py < trace.jsonl > requests.jsonl

A line is one turn. Its ``input_length`` and ``hash_ids`` are of what it adds to all turns before it
and their answers. A later turn comes ``delay`` ms after the turn before it has come. An id stands
for as many tokens as fit the lengths.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from request_lines import Piece, line, num_tokens

SIZES = (512, 64, 16, 32, 128, 256, 1024)  # tokens of an id, the most usual first


def convert(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line of each turn."""
    turns = [json.loads(text) for text in lines if text.strip()]
    size = next((size for size in SIZES if all(_fits(turn, size) for turn in turns)), None)
    if size is None:
        raise SystemExit(f"no size of {SIZES} gives every turn as many hash_ids as it has")
    texts: dict[Any, list[Piece]] = {}
    numbers: dict[Any, int] = {}
    last: dict[Any, float] = {}
    for number, turn in enumerate(turns):
        session = turn.get("session_id", number)
        begin = last.get(session, 0.0) + (turn.get("delay") or 0.0)
        last[session] = begin if turn.get("timestamp") is None else turn["timestamp"]
        text = texts.setdefault(session, [])
        own = numbers.setdefault(session, len(numbers))
        text += _added(turn, number, size)
        answer: Piece = ("answer", number), max(turn.get("output_length") or 0, 1)
        yield line(number, last[session] / 1e3, text, [answer], own)
        text.append(answer)


def _fits(turn: dict[str, Any], size: int) -> bool:
    ids = turn.get("hash_ids")
    return not ids or len(ids) == -(-turn["input_length"] // size)


def _added(turn: dict[str, Any], number: int, size: int) -> list[Piece]:
    ids: list[Piece] = [(one, size) for one in turn.get("hash_ids") or ()]
    if not ids:
        return [(("turn", number), turn["input_length"])]
    *whole, (last, _) = ids
    return [*whole, (last, turn["input_length"] - num_tokens(whole))]


if __name__ == "__main__":
    sys.stdout.writelines(convert(sys.stdin))
