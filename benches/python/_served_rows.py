"""Shared parts of the figures of level ``natural``: rows, how models are deployed, traces."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from _record import CARD, Row
from _served_model import Side
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.trace import Trace, read_trace


@dataclass(frozen=True)
class Chosen:
    """The folder of the traces, and the cases that a run is for: all of a part that names none."""

    data: Path
    models: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    sides: tuple[Side, ...] = tuple(Side)
    cells: int | None = None


Cases = Iterator[tuple[Row, Callable[[], Row]]]
"""Rows that name a case, each with the function that measures its other fields."""

GIB = 2**30
MAX_MODEL_LEN = 16_384
TOKENS = 8192
"""Tokens a step."""

MODELS = ("Qwen3.5-27B", "Nemotron-H-8B")


def deployment(length: int = MAX_MODEL_LEN) -> Deployment:
    """Return how models are deployed: no drafts, one H100, one batch in flight."""
    return Deployment(
        max_model_len=length, max_num_batched_tokens=TOKENS, in_flight_batches=1, card=CARD
    )


@cache
def read(data: Path, file: str, limit: int) -> Trace:
    """Read the first requests of a trace."""
    return read_trace(data / "traces" / file).head(limit)


def pairs(found: list[Row], name: str) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of stock vLLM and of level ``natural`` that have one name in common.

    A model that is refused at level ``natural`` has no row of it, and is passed over.
    """
    for _, group in groupby(found, key=lambda row: row[name]):
        sides = {row["side"]: row for row in group}
        if Side.NATURAL in sides:
            yield sides[Side.STOCK], sides[Side.NATURAL]
