"""Make requests of TraceLab's rounds of coding agents, its JSON lines or its CSV.

    python examples/convert/tracelab.py < rounds.jsonl > requests.jsonl

A round repeats the first ``prefix_tokens`` of its session's text, and the rest of its prompt is
new. The prefix is what the provider found in its own cache, so text that it had lost counts as new.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from request_lines import Piece, first_tokens, line, num_tokens


class Round(NamedTuple):
    """One round; ``begins`` is in seconds, None where the file does not tell."""

    session: str
    number: int
    begins: float | None
    repeated: int
    added: int
    answer: int


def convert(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line of each round."""
    filled = filter(str.strip, lines)
    first = next(filled, "")
    read = _read_json if first.startswith("{") else _read_csv
    rounds = sorted(read(chain((first,), filled)), key=lambda one: (one.session, one.number))
    start = min((one.begins for one in rounds if one.begins is not None), default=0.0)
    session, when, numbers = "", start, -1
    text: list[Piece] = []
    for number, one in enumerate(rounds):
        if one.session != session or not number:
            session, text, when, numbers = one.session, [], start, numbers + 1
        when = when if one.begins is None else one.begins
        prompt = first_tokens(text, one.repeated)
        lost = one.repeated - num_tokens(prompt)
        prompt.append((("added", number), lost + one.added))
        answer: Piece = ("answer", number), max(one.answer, 1)
        text = [*prompt, answer]
        yield line(number, when - start, prompt, [answer], numbers)


def _read_json(lines: Iterable[str]) -> Iterator[Round]:
    for fields in map(json.loads, lines):
        events = fields.get("timing_events") or ()
        times = [event["timestamp"] for event in events if event.get("timestamp")]
        yield Round(
            fields["session_id"],
            fields["round_index"],
            min((datetime.fromisoformat(time).timestamp() for time in times), default=None),
            fields["prefix_tokens"],
            fields["newly_append_tokens"],
            fields["output_tokens"],
        )


def _read_csv(lines: Iterable[str]) -> Iterator[Round]:
    for row in csv.DictReader(lines):
        tokens = (int(row[name]) for name in ("prefix_len", "input_len", "output_len"))
        yield Round(row["id"], int(row["round_idx"]), float(row["arrival_time"]) / 1e3, *tokens)


if __name__ == "__main__":
    sys.stdout.writelines(convert(sys.stdin))
