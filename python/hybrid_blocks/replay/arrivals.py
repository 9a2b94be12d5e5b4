"""When requests come in."""

import heapq
from collections import defaultdict

import numpy as np

from hybrid_blocks.trace import Trace


class Arrivals:
    """The requests that have not arrived yet, by virtual time; equal times by trace order.

    Attributes:
        due: when each request arrives, shape ``[n]``; NaN while nothing says so.
    """

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
        """When the next request arrives, in seconds; infinity if none is due."""
        return self._heap[0][0] if self._heap else float("inf")

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
