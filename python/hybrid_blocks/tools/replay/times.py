"""Times of a replay on a card, targets for them, and the highest rate within the targets."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Self

import msgspec
import numpy as np

from hybrid_blocks.tools.replay.config import ReplayError, Target
from hybrid_blocks.tools.replay.counters import KINDS

if TYPE_CHECKING:
    from hybrid_blocks.tools.replay.engine import VirtualEngine

STEPS_OF_TWICE: Final = 16
"""Steps of the grid of rates in which a rate doubles; one is 4.4 %."""
MOST_STEPS: Final = 10 * STEPS_OF_TWICE


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the requests of a replay, in a card's virtual time.

    The reference (``replay-figures.md``) has the meaning of each field.
    """

    clock: str
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float
    tokens_per_second: float
    requests_per_second: float
    goodput: float | None
    targets: dict[str, float]
    within_targets: bool | None
    rate: float = 1.0
    is_highest: bool = False

    @classmethod
    def of(cls, engine: "VirtualEngine", targets: Sequence[Target]) -> Self:
        """Collect the times of an engine that has run."""
        kept = np.isfinite(engine.latencies.finished)
        taken = {kind: engine.latencies.of(kind) for kind in KINDS}

        def percentile(kind: str, percent: int) -> float:
            return float(np.percentile(taken[kind], percent)) if len(taken[kind]) else 0.0

        values = {it.text: percentile(it.kind, it.percentile) for it in targets}
        for target in targets:
            kept[kept] &= ~(engine.latencies.each(target.kind)[kept] > target.seconds)
        is_within = all(values[it.text] <= it.seconds for it in targets)
        seconds = max(engine.now, 1e-9)
        return cls(
            clock=engine.config.step_time.text,
            ttft_mean_ms=1e3 * float(taken["ttft"].mean()) if len(taken["ttft"]) else 0.0,
            ttft_p50_ms=1e3 * percentile("ttft", 50),
            ttft_p95_ms=1e3 * percentile("ttft", 95),
            tpot_p50_ms=1e3 * percentile("tpot", 50),
            tpot_p95_ms=1e3 * percentile("tpot", 95),
            tokens_per_second=engine.counters.output_tokens / seconds,
            requests_per_second=engine.counters.finished / seconds,
            goodput=float(kept.sum() / seconds) if targets else None,
            targets=values,
            within_targets=is_within if targets else None,
        )


def read_rate(text: str) -> float | None:
    """Read ``1.5x``, and None of ``max``."""
    if text == "max":
        return None
    if re.fullmatch(r"\d+(\.\d+)?x", text) is None or not float(text[:-1]):
        raise ReplayError(f"--rate {text!r}: write a factor such as 1.5x, or max")
    return float(text[:-1])


def rate_of(step: int) -> float:
    """Return the rate at a step of the grid; step 0 is the trace's own."""
    return float(2 ** (step / STEPS_OF_TWICE))


def highest_step(holds: Callable[[int], bool]) -> int | None:
    """Return the highest step of the grid of rates at which targets hold, None if they never do.

    A step is sought at twice the rate or half of it, then between the two. `MOST_STEPS` is
    returned where the targets hold at any rate.
    """
    if holds(0):
        low, high = 0, STEPS_OF_TWICE
        while holds(high):
            low, high = high, high + STEPS_OF_TWICE
            if high > MOST_STEPS:
                return MOST_STEPS
    else:
        low, high = -STEPS_OF_TWICE, 0
        while not holds(low):
            low, high = low - STEPS_OF_TWICE, low
            if low < -MOST_STEPS:
                return None
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
