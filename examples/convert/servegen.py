"""Draw requests of ServeGen's clients, such as its ``data/language/m-large``, as Azure's CSV.

    python examples/convert/servegen.py FOLDER 4000 > requests.csv

A client has ``chunk-N-trace.csv``, a line for each ten minutes: second, requests a second,
deviation, Gamma or Weibull, shape, scale. Its ``chunk-N-dataset.json`` has the share of requests
with each number of tokens, from a second on. Requests are drawn from the window in which all
clients send most, and from those behind it. They share nothing.
"""

import ast
import csv
import json
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

Lengths = dict[int, float]


class Client(NamedTuple):
    """Rate, law and shape of a window's gaps, and lengths of prompts and answers, by second."""

    windows: dict[float, tuple[float, str, float]]
    lengths: dict[float, tuple[Lengths, Lengths]]

    def rate(self, second: float) -> float:
        """Return the requests a second of the window that begins then."""
        return self.windows[second][0] if second in self.windows and self.at(second) else 0.0

    def at(self, second: float) -> tuple[Lengths, Lengths] | None:
        """Return the last laws of lengths that begin before a second."""
        known = [begins for begins in self.lengths if begins <= second]
        return self.lengths[max(known)] if known else None


def draw(folder: Path, num_requests: int, seed: int = 0) -> list[tuple[float, int, int]]:
    """Return second, prompt tokens and answer tokens of the requests."""
    clients = [_read(file) for file in sorted(folder.glob("chunk-*-trace.csv"))]
    begins = sorted({second for client in clients for second in client.windows})
    if len(begins) < 2:
        raise SystemExit(f"{folder} holds no client: chunk-N-trace.csv with two windows")
    start = max(begins, key=lambda second: sum(client.rate(second) for client in clients))
    rng = np.random.default_rng(seed)
    found: list[tuple[float, int, int]] = []
    for begin, end in zip(begins, [*begins[1:], 2 * begins[-1] - begins[-2]], strict=True):
        if begin < start or len(found) >= num_requests:
            continue
        for client in clients:
            times = _arrivals(client, begin, end, rng, num_requests)
            prompt, answer = client.at(begin) or ({}, {})
            sizes = (_lengths(law, len(times), rng) for law in (prompt, answer))
            found += zip(times, *sizes, strict=True)
    return sorted(found)[:num_requests]


def _arrivals(
    client: Client, begin: float, end: float, rng: np.random.Generator, most: int
) -> list[float]:
    times: list[float] = []
    if not (rate := client.rate(begin)):
        return times
    _, law, shape = client.windows[begin]
    time = begin
    while len(times) <= most:
        if law == "Gamma":
            gap = rng.gamma(shape) / (shape * rate)
        else:
            gap = rng.weibull(shape) / (math.gamma(1 + 1 / shape) * rate)
        # The window opens somewhere within a gap.
        time += gap if times else gap * rng.random()
        if time >= end:
            break
        times.append(time)
    return times


def _lengths(law: Lengths, number: int, rng: np.random.Generator) -> list[int]:
    if not number:
        return []
    shares = np.array(list(law.values()))
    drawn = rng.choice(list(law), number, p=shares / shares.sum())
    return [int(tokens) for tokens in np.maximum(drawn, 1)]


def _read(file: Path) -> Client:
    with file.open(newline="") as lines:
        windows = {
            float(begins): (float(rate), law, float(shape))
            for begins, rate, _, law, shape, _ in csv.reader(lines)
        }
    beside = file.with_name(file.name.replace("-trace.csv", "-dataset.json"))
    lengths = {}
    for begins, laws in json.loads(beside.read_text()).items():
        prompt, answer = (ast.literal_eval(laws[f"{name}_tokens"]) for name in ("input", "output"))
        if sum(prompt.values()) and sum(answer.values()):
            lengths[float(begins)] = prompt, answer
    return Client(windows, lengths)


def main(folder: str, num_requests: str = "4000") -> Iterator[str]:
    """Yield the lines of the CSV."""
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for second, prompt, answer in draw(Path(folder), int(num_requests)):
        yield f"{datetime.fromtimestamp(second, UTC)},{prompt},{answer}\n"


if __name__ == "__main__":
    sys.stdout.writelines(main(*sys.argv[1:]))
