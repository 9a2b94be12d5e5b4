"""One-off prompts: nothing but an application's preamble is ever seen again."""

from dataclasses import dataclass

from hybrid_blocks.trace.workloads.draw import Draw, LogNormal
from hybrid_blocks.trace.workloads.schedule import Schedule
from hybrid_blocks.trace.workloads.sessions import Prefixes, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SinglePrompts:
    """A prompt is one of a few preambles, and tokens that no later prompt repeats."""

    sessions_per_second: float = 2.0
    prefixes: Prefixes = Prefixes(number=12, popularity=1.0, tokens=(600.0, 0.8))
    prompt_tokens: LogNormal = (2_000.0, 1.1)
    most_prompt_tokens: int = 30_000
    output_tokens: LogNormal = (200.0, 0.9)

    def source(self, draw: Draw) -> "Applications":
        """Make the preambles."""
        return Applications(self, draw)


class Applications(Source[SinglePrompts]):
    """Sends prompts."""

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan one request."""
        kind, draw = self.kind, self.draw
        preamble = self.prefix()
        prompt = draw.tokens(kind.prompt_tokens, kind.most_prompt_tokens)
        output = draw.tokens(kind.output_tokens)
        schedule.add([preamble, prompt, output], session=session, time=time)
