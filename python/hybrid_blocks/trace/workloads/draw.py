"""Random lengths and choices that the generated workloads share."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from hybrid_blocks.trace.builder import Span, TraceBuilder

LogNormal = tuple[float, float]
"""The median, and the deviation of the logarithm: a broad middle and a long tail."""

T = TypeVar("T")


class Draw:
    """Draws spans, numbers and choices from one random generator."""

    def __init__(self, rng: np.random.Generator, builder: TraceBuilder) -> None:
        self.rng = rng
        self.builder = builder

    def seconds(self, law: LogNormal) -> float:
        """Return a time."""
        median, deviation = law
        return float(self.rng.lognormal(np.log(median), deviation))

    def count(self, law: LogNormal) -> int:
        """Return a number of tokens, at least 1."""
        return max(1, round(self.seconds(law)))

    def tokens(self, law: LogNormal, most: int | None = None) -> Span:
        """Return new tokens; ``law`` gives their number."""
        count = self.count(law)
        return self.builder.fresh(count if most is None else min(count, most))

    def tokens_between(self, least: int, most: int) -> Span:
        """Return new tokens, as many as a log-uniform law says."""
        return self.builder.fresh(round(float(np.exp(self.rng.uniform(*np.log((least, most)))))))

    def chance(self, probability: float) -> bool:
        """Return True as often as told."""
        return bool(self.rng.random() < probability)

    def popular(self, choices: Sequence[T], exponent: float) -> T:
        """Choose by a Zipf law: the first is the most popular."""
        weight = np.arange(1, len(choices) + 1) ** -exponent
        return choices[int(self.rng.choice(len(choices), p=weight / weight.sum()))]
