"""A workload made from a seed: branching conversations under shared system prompts."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from hybrid_blocks.trace.builder import Span, TraceBuilder
from hybrid_blocks.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The distributions that a generated workload is drawn from.

    Lengths are log-normal, as ``(median tokens, deviation of the logarithm)``: a broad middle
    and a long tail, like public serving traces.
    """

    num_requests: int = 4000
    conversations_per_second: float = 2.5
    num_system_prompts: int = 12
    system_popularity: float = 1.1
    system_tokens: tuple[float, float] = (700.0, 0.9)
    message_tokens: tuple[float, float] = (150.0, 1.3)
    output_tokens: tuple[float, float] = (180.0, 0.9)
    more_turns: float = 0.75
    branch: float = 0.12
    pause_seconds: float = 15.0
    max_tokens: int = 32_768


def generate_trace(seed: int = 0, shape: Shape | None = None) -> Trace:
    """Make a workload; equal seeds and shapes make equal workloads.

    A conversation opens with one of the system prompts, chosen by a Zipf law; conversations open as
    a Poisson process. Each turn sends everything before it and a new message. After a turn the
    conversation continues with probability ``more_turns`` unless it would pass ``max_tokens``. With
    probability ``branch`` it continues twice: two continuations share one history.
    """
    return Conversations(np.random.default_rng(seed), shape or Shape()).run(
        f"generated, seed {seed}"
    )


class Conversations:
    """Draws conversations."""

    def __init__(self, rng: np.random.Generator, shape: Shape) -> None:
        self._rng = rng
        self._shape = shape

    def run(self, name: str) -> Trace:
        """Make a trace of the shape's number of requests."""
        shape = self._shape
        builder = TraceBuilder(name)
        self.fill(builder, shape.num_requests)
        return builder.build().head(shape.num_requests)

    def fill(self, builder: TraceBuilder, num_requests: int, start: float = 0.0) -> None:
        """Add conversations until the builder holds ``num_requests`` or more."""
        shape, rng = self._shape, self._rng
        systems = [
            builder.fresh(self._length(shape.system_tokens))
            for _ in range(shape.num_system_prompts)
        ]
        weight = np.arange(1, len(systems) + 1) ** -shape.system_popularity
        opening = start
        while len(builder) < num_requests:
            opening += float(rng.exponential(1 / shape.conversations_per_second))
            system = systems[rng.choice(len(systems), p=weight / weight.sum())]
            self._converse(builder, system, opening)

    def _converse(self, builder: TraceBuilder, system: Span, opening: float) -> None:
        shape, rng = self._shape, self._rng
        session = builder.new_session()
        turns: deque[tuple[list[Span], int]] = deque([([system], -1)])
        while turns:
            history, follows = turns.popleft()
            message = builder.fresh(self._length(shape.message_tokens))
            output = builder.fresh(self._length(shape.output_tokens))
            spans = [*history, message, output]
            prompt = sum(count for _, count in spans) - output[1]
            if prompt + output[1] > shape.max_tokens and follows >= 0:
                continue
            request = builder.add(
                spans,
                arrival=opening if follows < 0 else float(rng.exponential(shape.pause_seconds)),
                prompt_tokens=prompt,
                output_tokens=output[1],
                follows=follows,
                session=session,
            )
            if rng.random() < shape.more_turns:
                turns.extend([(spans, request)] * (1 + int(rng.random() < shape.branch)))

    def _length(self, median_and_deviation: tuple[float, float]) -> int:
        median, deviation = median_and_deviation
        return max(1, round(float(self._rng.lognormal(np.log(median), deviation))))
