"""How far a placement that learns stays behind the best fixed one of the same load."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import EngineConfig
from hybrid_blocks.tools.replay.run import Variant, compare
from hybrid_blocks.tools.trace import Trace

LEARNING: Final = 300
"""Requests after which a placement has learned, from the start and from a change of the load."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Requests over which hits are compared, as places in the order of admission."""

    first: int
    end: int


class Regret(msgspec.Struct, frozen=True, kw_only=True):
    """Hit rates over one phase.

    Attributes:
        phase: the requests that count.
        learned: of the placement that learns.
        fixed: of the fixed ones, by name.
    """

    phase: Phase
    learned: float
    fixed: Mapping[str, float]

    @property
    def best(self) -> str:
        """The fixed placement that hits most."""
        return max(self.fixed, key=lambda name: self.fixed[name])

    @property
    def of_best(self) -> float:
        """Hits of the placement that learns over those of the best fixed one."""
        best = self.fixed[self.best]
        return self.learned / best if best else 1.0


def phases(num_requests: int, changes: Sequence[int] = ()) -> tuple[Phase, ...]:
    """Return the rest of each part of a load after a placement had time to learn it."""
    starts = (0, *changes)
    spans = zip(starts, (*changes, num_requests), strict=True)
    return tuple(Phase(first=start + LEARNING, end=end) for start, end in spans)


def measure_regret(
    trace: Trace,
    cache: Cache,
    config: EngineConfig,
    *,
    learned: Variant,
    fixed: Sequence[Variant],
    over: Sequence[Phase],
) -> Iterator[Regret]:
    """Replay a trace with every placement; yield the hits of each phase."""
    runs = compare(trace, cache, (learned, *fixed), config)
    timelines = {variant: run[1] for variant, run in zip((learned, *fixed), runs, strict=True)}
    for phase in over:
        rates = {it: hit_rate(trace, timelines[it], phase) for it in (learned, *fixed)}
        of_fixed = {it.placement: rates[it] for it in fixed}
        yield Regret(phase=phase, learned=rates[learned], fixed=of_fixed)


def hit_rate(trace: Trace, timeline: Timeline, phase: Phase) -> float:
    """Return the hit rate of the requests of one phase."""
    admitted = np.frombuffer(timeline.admitted, dtype=np.int64)[phase.first : phase.end]
    hits = np.frombuffer(timeline.hit_tokens, dtype=np.int64)[phase.first : phase.end]
    return float(hits.sum() / max(trace.prompt_tokens[admitted].sum(dtype=np.int64), 1))
