"""Requests of many sessions, put in the order in which they come."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from hybrid_blocks.trace.builder import Span, TraceBuilder

SECONDS_PER_OUTPUT_TOKEN = 0.008
SECONDS_PER_PROMPT_TOKEN = 10e-6
"""How long a request is taken to run, to order those that follow another."""


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
