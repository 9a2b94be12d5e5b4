"""The interface of a kind of generated session."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from hybrid_blocks.trace.builder import Span, TraceBuilder
from hybrid_blocks.trace.workloads.draw import Draw, LogNormal
from hybrid_blocks.trace.workloads.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """The prefixes with which sessions begin: system prompts, preambles, schemas of tools.

    Attributes:
        number: how many there are.
        popularity: the exponent of the Zipf law by which a session takes one of them.
        tokens: how long they are.
    """

    number: int
    popularity: float
    tokens: LogNormal


class Kind(Protocol):
    """The parameters of one kind of session."""

    @property
    def sessions_per_second(self) -> float:
        """How often one opens: a Poisson process."""

    @property
    def prefixes(self) -> Prefixes:
        """The prefixes with which sessions begin."""

    def source(self, draw: Draw) -> "Source[Any]":
        """Make what all sessions share, and what opens them."""


K = TypeVar("K", bound=Kind)


class Source(ABC, Generic[K]):
    """Opens sessions of one kind."""

    def __init__(self, kind: K, draw: Draw) -> None:
        self.kind = kind
        self.draw = draw
        self._prefixes = [draw.tokens(kind.prefixes.tokens) for _ in range(kind.prefixes.number)]

    def prefix(self) -> Span:
        """Return what a session begins with."""
        return self.draw.popular(self._prefixes, self.kind.prefixes.popularity)

    @abstractmethod
    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan all requests of one session that opens at ``time``."""


def fill(
    kind: Kind, builder: TraceBuilder, rng: np.random.Generator, num_requests: int, start: float
) -> float:
    """Add the first requests of sessions that open from ``start`` on; return when the last did."""
    draw, schedule = Draw(rng, builder), Schedule()
    source = kind.source(draw)
    time = start
    while schedule.num_before(time) < num_requests:
        time += float(rng.exponential(1 / kind.sessions_per_second))
        source.open(schedule, builder.new_session(), time)
    schedule.fill(builder, num_requests)
    return time
