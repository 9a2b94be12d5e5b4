"""The cheapest candidate that serves the trace."""

from collections.abc import Callable, Sequence

import msgspec

from hybrid_blocks.sizing.candidate import Candidate
from hybrid_blocks.sizing.evaluate import Row, evaluate
from hybrid_blocks.sizing.question import Question


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates that were tried, the cheapest first, and how many were not.

    The last of ``rows`` is the cheapest that serves the trace, if any does.
    """

    rows: tuple[Row, ...]
    untried: int

    @property
    def best(self) -> Row | None:
        """The cheapest that serves the trace."""
        return self.rows[-1] if self.rows and self.rows[-1].serves else None


def search(
    question: Question,
    candidates: Sequence[Candidate],
    on_progress: Callable[[int], None] = lambda _: None,
) -> Found:
    """Try candidates in the order of their cost, up to the first that serves the trace.

    More memory or more cards need not be better: eviction and chunks fall differently. So a
    candidate is passed over for its own reasons alone. Its weights do not fit; or requests are late
    even if each runs alone; or more are late in its replay than a percentile allows.
    """
    rows: list[Row] = []
    for number, candidate in enumerate(candidates):
        on_progress(number)
        rows.append(evaluate(question, candidate))
        if rows[-1].serves:
            break
    return Found(rows=tuple(rows), untried=len(candidates) - len(rows))
