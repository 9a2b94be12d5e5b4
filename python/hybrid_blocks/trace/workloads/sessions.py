"""What a kind of generated session is."""

from typing import Protocol

import numpy as np

from hybrid_blocks.trace.builder import TraceBuilder
from hybrid_blocks.trace.workloads.draw import Draw
from hybrid_blocks.trace.workloads.schedule import Schedule


class Source(Protocol):
    """Opens sessions of one kind."""

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan all requests of one session that opens at ``time``."""


class Kind(Protocol):
    """The parameters of one kind of session."""

    @property
    def sessions_per_second(self) -> float:
        """How often one opens: a Poisson process."""

    def source(self, draw: Draw, builder: TraceBuilder) -> Source:
        """Make what all sessions share, and what opens them."""


def fill(
    kind: Kind, builder: TraceBuilder, rng: np.random.Generator, num_requests: int, start: float
) -> float:
    """Add the first requests of sessions that open from ``start`` on; return when the last did."""
    draw, schedule = Draw(rng, builder), Schedule()
    source = kind.source(draw, builder)
    time = start
    while schedule.num_before(time) < num_requests:
        time += float(rng.exponential(1 / kind.sessions_per_second))
        source.open(schedule, builder.new_session(), time)
    schedule.fill(builder, num_requests)
    return time
