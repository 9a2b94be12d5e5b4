"""Sessions of one kind: what they draw, when their requests come, and how they fill a trace."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from hybrid_blocks.tools.trace.builder import Span, TraceBuilder

LogNormal = tuple[float, float]
"""The median, and the deviation of the logarithm: a broad middle and a long tail."""

SECONDS_PER_OUTPUT_TOKEN = 0.008
SECONDS_PER_PROMPT_TOKEN = 10e-6
"""How long a request is taken to run, to order those that follow another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """The prefixes with which sessions begin: system prompts, preambles, schemas of tools.

    Attributes:
        number: how many there are.
        popularity: the exponent of the Zipf law by which a session takes one of them.
        tokens: how long they are.
        of_subagents: how long one more is, with which no session begins by itself; None without.
    """

    number: int
    popularity: float
    tokens: LogNormal
    of_subagents: LogNormal | None = None


class Draw:
    """Draws spans, numbers and choices from one random generator, for sessions with prefixes."""

    def __init__(self, rng: np.random.Generator, builder: TraceBuilder, prefixes: Prefixes) -> None:
        self.rng = rng
        self.builder = builder
        self._popularity = prefixes.popularity
        self._prefixes = [self.tokens(prefixes.tokens) for _ in range(prefixes.number)]
        law = prefixes.of_subagents
        self.of_subagents = None if law is None else self.tokens(law)

    def prefix(self) -> Span:
        """Return what a session begins with, by a Zipf law: the first is the most popular."""
        weight = np.arange(1, len(self._prefixes) + 1) ** -self._popularity
        choice = self.rng.choice(len(self._prefixes), p=weight / weight.sum())
        return self._prefixes[int(choice)]

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


@dataclass(slots=True, eq=False)
class Planned:
    """A request to come.

    Attributes:
        time: when it comes, in seconds; nominal if it follows another.
        spans: its tokens, prompt then output.
        num_output: how many of them are output.
        session: the session that it belongs to.
        leader: the request that must have finished before.
        pause: seconds from the end of the leader.
    """

    time: float
    spans: Sequence[Span]
    num_output: int
    session: int
    leader: "Planned | None" = None
    pause: float = 0.0

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return sum(count for _, count in self.spans) - self.num_output

    @property
    def end(self) -> float:
        """When it has finished, nominally."""
        prompt = self.num_prompt * SECONDS_PER_PROMPT_TOKEN
        return self.time + prompt + self.num_output * SECONDS_PER_OUTPUT_TOKEN


class Schedule:
    """Collects requests and adds the first of them to a trace."""

    def __init__(self) -> None:
        self._planned: list[Planned] = []

    def add(
        self,
        spans: Sequence[Span],
        *,
        session: int,
        time: float = 0.0,
        leader: Planned | None = None,
        pause: float = 0.0,
    ) -> Planned:
        """Plan a request whose last span is its output; ``time`` is for one without a leader."""
        if leader is not None:
            time = leader.end + pause
        request = Planned(time, spans, spans[-1][1], session, leader, pause)
        self._planned.append(request)
        return request

    def num_before(self, time: float) -> int:
        """Return how many requests come by ``time``."""
        return sum(request.time <= time for request in self._planned)

    def fill(self, builder: TraceBuilder, num_requests: int) -> None:
        """Add the requests that come first."""
        index: dict[Planned, int] = {}
        for request in sorted(self._planned, key=attrgetter("time"))[:num_requests]:
            index[request] = builder.add(
                request.spans,
                arrival=request.time if request.leader is None else request.pause,
                prompt_tokens=request.num_prompt,
                output_tokens=request.num_output,
                follows=-1 if request.leader is None else index[request.leader],
                session=request.session,
            )


@dataclass(frozen=True, kw_only=True)
class Sessions(ABC):
    """The parameters of one kind of session; sessions open by a Poisson process."""

    sessions_per_second: float
    prefixes: Prefixes

    @abstractmethod
    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        """Plan all requests of one session that opens at ``time``."""


def fill(
    kind: Sessions,
    builder: TraceBuilder,
    rng: np.random.Generator,
    num_requests: int,
    start: float = 0.0,
) -> float:
    """Add the first requests of sessions that open from ``start`` on; return when the last did."""
    draw, schedule = Draw(rng, builder, kind.prefixes), Schedule()
    time = start
    while schedule.num_before(time) < num_requests:
        time += float(rng.exponential(1 / kind.sessions_per_second))
        kind.open(draw, schedule, builder.new_session(), time)
    schedule.fill(builder, num_requests)
    return time
