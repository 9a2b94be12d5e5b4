"""Ends a replay as soon as no target can be kept any more."""

from typing import Final

import numpy as np

from hybrid_blocks.replay import Engine
from hybrid_blocks.replay.latencies import Counts
from hybrid_blocks.sizing.slo import Target

_LOOKS: Final = 500
"""Times that a whole replay is looked at."""


class LostError(Exception):
    """A target is missed, whatever comes."""

    def __init__(self, target: Target) -> None:
        super().__init__(str(target))
        self.target = target


class Watch:
    """Counts the requests that are late: those that have their times, and those that wait.

    Replicas are looked at one after another; the late ones of earlier replicas count on.
    """

    def __init__(self, targets: tuple[Target, ...], output_tokens: Counts) -> None:
        self._targets = targets
        self._num_requests = {
            "tpot": int((output_tokens > 1).sum()),
            "ttft": len(output_tokens),
            "e2e": len(output_tokens),
        }
        self._every = max(1, len(output_tokens) // _LOOKS)
        self._next = self._every
        self._late_before = dict.fromkeys(targets, 0)

    def look(self, engine: Engine, done: int) -> None:
        """Look at an engine that has finished ``done`` requests.

        Raises:
            LostError: a target is missed.

        """
        if done < self._next:
            return
        self._next = done + self._every
        for target, late in self._late(engine).items():
            if target.is_lost(late, self._num_requests[target.kind]):
                raise LostError(target)

    def end(self, engine: Engine) -> None:
        """Take the late requests of a replica that has finished."""
        self._late_before = self._late(engine)
        self._next = self._every

    def _late(self, engine: Engine) -> dict[Target, int]:
        times = engine.latencies
        found: dict[Target, int] = {}
        waited = engine.now - times.arrived
        for target in self._targets:
            late = int((times.of(target.kind) >= target.seconds).sum())
            if target.kind != "tpot":
                reached = times.first_token if target.kind == "ttft" else times.finished
                late += int((np.isnan(reached) & (waited >= target.seconds)).sum())
            found[target] = self._late_before[target] + late
        return found
