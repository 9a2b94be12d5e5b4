"""Requests shared out to replicas, as a router that keeps sessions together does it."""

from collections.abc import Iterator

import numpy as np

from hybrid_blocks.trace import Trace


def share_out(trace: Trace, num_replicas: int) -> Iterator[Trace]:
    """Yield the requests of each replica that gets any.

    The first request of a session goes to the replica that was given the fewest tokens, and the
    others follow it. So does a request that follows another.
    """
    if num_replicas == 1:
        yield trace
        return
    given = [0] * num_replicas
    chosen = np.empty(len(trace), dtype=np.int64)
    of_session: dict[int, int] = {}
    rows = zip(
        trace.session.tolist(), trace.follows.tolist(), trace.total_tokens.tolist(), strict=True
    )
    for number, (session, leader, tokens) in enumerate(rows):
        replica = int(chosen[leader]) if leader >= 0 else of_session.get(session)
        if replica is None:
            replica = given.index(min(given))
        if session >= 0:
            of_session.setdefault(session, replica)
        chosen[number] = replica
        given[replica] += tokens
    for replica in range(num_replicas):
        requests = np.flatnonzero(chosen == replica)
        if len(requests):
            yield trace.take(requests)
