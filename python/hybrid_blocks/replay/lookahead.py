"""The worth of content to a policy that knows the future."""

import numpy as np
import numpy.typing as npt

from hybrid_blocks.replay.clock import StepTime
from hybrid_blocks.trace import Trace
from hybrid_blocks.trace.sharing import prefix_ids

Uint64s = npt.NDArray[np.uint64]

SOONEST = np.uint64(1 << 63)
"""The worth of content that is used right away."""


class Lookahead:
    """When each block of each request is used next.

    Requests are put in the order in which they would come if nothing ever waited: a follower after
    the steps of its leader and the pause. Content is worth the more the sooner the next request
    that shares it comes, and nothing if none does.
    """

    def __init__(self, trace: Trace, block_size: int, step_time: StepTime) -> None:
        ids, self._start = prefix_ids(trace, block_size)
        rank = _ranks(trace, step_time)
        ranks = np.repeat(rank, np.diff(self._start))
        order = np.lexsort((ranks, ids))
        ids, ranks = ids[order], ranks[order]
        is_last = np.append(ids[1:] != ids[:-1], True)
        self._worth = np.zeros(len(ids), dtype=np.uint64)
        following = np.append(ranks[1:], 0)
        self._worth[order] = np.where(is_last, 0, SOONEST - following.astype(np.uint64))

    def worth(self, request: int) -> Uint64s:
        """Return the worth of each full block of a request, output included."""
        return self._worth[self._start[request] : self._start[request + 1]]


def _ranks(trace: Trace, step_time: StepTime) -> npt.NDArray[np.int64]:
    """Return each request's place in the order of nominal arrivals."""
    arrival = trace.arrival.tolist()
    service = (trace.output_tokens * step_time.fixed).tolist()
    for request, leader in enumerate(trace.follows.tolist()):
        if leader >= 0:
            arrival[request] += arrival[leader] + service[leader]
    rank = np.empty(len(trace), dtype=np.int64)
    rank[np.argsort(arrival, kind="stable")] = np.arange(len(trace))
    return rank
