"""Virtual time: when requests arrive, and samples of an engine over time."""

import heapq
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hybrid_blocks.tools.trace import Trace

if TYPE_CHECKING:
    from hybrid_blocks.tools.replay.managers.filmed import Film


class Arrivals:
    """The requests that have not arrived yet, by virtual time; equal times by trace order.

    Attributes:
        due: when each request arrives, shape ``[n]``; NaN while nothing says so.
        horizon: requests that arrive later may not be known yet.
    """

    horizon = float("inf")

    def __init__(self, trace: Trace) -> None:
        self._delay = trace.arrival.tolist()
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        self._heap: list[tuple[float, int]] = []
        self.due = np.where(trace.follows < 0, trace.arrival, np.nan)
        for request, leader in enumerate(trace.follows.tolist()):
            if leader < 0:
                self._heap.append((self._delay[request], request))
            else:
                self._followers[leader].append(request)
        heapq.heapify(self._heap)

    @property
    def next_time(self) -> float:
        """When the next request arrives, or the horizon, in seconds; infinity if none is due."""
        return min(self._heap[0][0], self.horizon) if self._heap else self.horizon

    def pop_until(self, now: float) -> list[int]:
        """Take the requests that have arrived by ``now``, in order."""
        arrived = []
        while self._heap and self._heap[0][0] <= now:
            arrived.append(heapq.heappop(self._heap)[1])
        return arrived

    def finish(self, request: int, now: float) -> None:
        """Make the requests that follow this one due after their pause."""
        for follower in self._followers.pop(request, ()):
            due = self.due[follower] = now + self._delay[follower]
            heapq.heappush(self._heap, (due, follower))


@dataclass(slots=True)
class Timeline:
    """Samples over virtual time, struct of arrays; each holds since the one before it.

    One is taken at the end of a step, before finished requests are freed. Another is taken at the
    end of a time in which nothing ran. ``admitted`` and ``hit_tokens`` have one entry a request
    instead.

    Attributes:
        used_blocks: blocks with an owner.
        waiting: requests that have arrived and hold nothing.
        admitted: requests of the trace in the order of their first admission.
        hit_tokens: prompt tokens that each of them found in the cache.
        admitted_at: when each of them first ran.
        film: the arena and the look-ups, where a film was wanted.
    """

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    used_blocks: "array[int]" = field(default_factory=lambda: array("q"))
    running: "array[int]" = field(default_factory=lambda: array("q"))
    waiting: "array[int]" = field(default_factory=lambda: array("q"))
    admitted: "array[int]" = field(default_factory=lambda: array("q"))
    hit_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    admitted_at: "array[float]" = field(default_factory=lambda: array("d"))
    film: "Film | None" = None

    def add(self, seconds: float, used_blocks: int, running: int, waiting: int) -> None:
        """Append a sample."""
        self.seconds.append(seconds)
        self.used_blocks.append(used_blocks)
        self.running.append(running)
        self.waiting.append(waiting)

    def admit(self, request: int, hit_tokens: int) -> None:
        """Note the first admission of a request."""
        self.admitted.append(request)
        self.hit_tokens.append(hit_tokens)
        self.admitted_at.append(self.seconds[-1] if self.seconds else 0.0)
