"""One-off prompts: nothing but an application's preamble is ever seen again."""

from dataclasses import dataclass

from hybrid_blocks.trace.builder import TraceBuilder
from hybrid_blocks.trace.workloads.draw import Draw, LogNormal
from hybrid_blocks.trace.workloads.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class SinglePrompts:
    """A prompt is one of a few preambles, and what nobody sends again."""

    sessions_per_second: float = 2.0
    num_preambles: int = 12
    preamble_popularity: float = 1.0
    preamble_tokens: LogNormal = (600.0, 0.8)
    prompt_tokens: LogNormal = (2_000.0, 1.1)
    most_prompt_tokens: int = 30_000
    output_tokens: LogNormal = (200.0, 0.9)

    def source(self, draw: Draw, builder: TraceBuilder) -> "Applications":
        """Make the preambles."""
        del builder
        return Applications(self, draw)


class Applications:
    """Sends prompts."""

    def __init__(self, kind: SinglePrompts, draw: Draw) -> None:
        self._kind = kind
        self._draw = draw
        self._preambles = [draw.tokens(kind.preamble_tokens) for _ in range(kind.num_preambles)]

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan one request."""
        kind, draw = self._kind, self._draw
        preamble = draw.popular(self._preambles, kind.preamble_popularity)
        prompt = draw.tokens(kind.prompt_tokens, kind.most_prompt_tokens)
        output = draw.tokens(kind.output_tokens)
        schedule.add([preamble, prompt, output], session=session, time=time)
