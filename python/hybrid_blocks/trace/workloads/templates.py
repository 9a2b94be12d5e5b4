"""Templates: prompts share a prefix that does not end where the last prompt's ended."""

from dataclasses import dataclass

from hybrid_blocks.trace.builder import Span
from hybrid_blocks.trace.workloads.draw import Draw, LogNormal
from hybrid_blocks.trace.workloads.schedule import Schedule
from hybrid_blocks.trace.workloads.sessions import Prefixes, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """A prompt is the first tokens of a template, and tokens that no later prompt repeats.

    A template is cut at one of its few lengths, as where examples, tools or documents are left out
    at its end. Each prompt draws its own length, at or a little below that cut.
    """

    sessions_per_second: float = 2.0
    prefixes: Prefixes = Prefixes(number=6, popularity=1.0, tokens=(5_500.0, 0.25))
    cuts: tuple[float, ...] = (0.75, 0.85, 1.0)
    spread: float = 0.02
    """A prefix is shorter than its cut by at most this share of it."""
    prompt_tokens: LogNormal = (500.0, 0.9)
    most_prompt_tokens: int = 8_000
    output_tokens: LogNormal = (150.0, 0.8)

    def source(self, draw: Draw) -> "Forms":
        """Make the templates."""
        return Forms(self, draw)


class Forms(Source[Templates]):
    """Fills templates in."""

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan one request."""
        kind, draw = self.kind, self.draw
        prompt = draw.tokens(kind.prompt_tokens, kind.most_prompt_tokens)
        output = draw.tokens(kind.output_tokens)
        schedule.add([self._cut(), prompt, output], session=session, time=time)

    def _cut(self) -> Span:
        kind, draw = self.kind, self.draw
        first, count = self.prefix()
        share = float(draw.rng.choice(kind.cuts)) * (1 - kind.spread * draw.rng.random())
        return first, max(1, round(count * share))
