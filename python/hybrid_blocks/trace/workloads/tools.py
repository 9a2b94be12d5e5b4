"""Branching tools: one history continues in several ways at once."""

from dataclasses import dataclass

from hybrid_blocks.trace.builder import Span
from hybrid_blocks.trace.workloads.draw import Draw, LogNormal
from hybrid_blocks.trace.workloads.schedule import Planned, Schedule
from hybrid_blocks.trace.workloads.sessions import Prefixes, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchingTools:
    """A task is worked on as a tree: every step tries several tool calls, and continues with some.

    Half of the tools get the answer too. The others get the prompt without its last 10 to 600
    tokens, which ask for the choice of a tool. So they leave the earlier prompt before its end.
    """

    sessions_per_second: float = 0.25
    prefixes: Prefixes = Prefixes(number=6, popularity=1.0, tokens=(5_000.0, 0.5))
    task_tokens: LogNormal = (500.0, 0.8)
    ask_tokens: tuple[int, int] = (10, 600)
    result_tokens: LogNormal = (600.0, 0.9)
    output_tokens: LogNormal = (120.0, 0.7)
    fewest_calls: int = 2
    most_calls: int = 4
    gets_answer: float = 0.5
    goes_on: float = 0.4
    most_steps: int = 5
    tool_seconds: LogNormal = (4.0, 0.8)

    def source(self, draw: Draw) -> "Trees":
        """Make the tools' schemas."""
        return Trees(self, draw)


class Trees(Source[BranchingTools]):
    """Opens tasks."""

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan a task and all its branches."""
        spans = self._step([self.prefix(), self.draw.tokens(self.kind.task_tokens)])
        self._branch(schedule, schedule.add(spans, session=session, time=time), 1)

    def _step(self, history: list[Span]) -> list[Span]:
        kind, draw = self.kind, self.draw
        return [*history, draw.tokens_between(*kind.ask_tokens), draw.tokens(kind.output_tokens)]

    def _branch(self, schedule: Schedule, step: Planned, depth: int) -> None:
        kind, draw = self.kind, self.draw
        if depth == kind.most_steps:
            return
        history = list(step.spans if draw.chance(kind.gets_answer) else step.spans[:-2])
        for _ in range(int(draw.rng.integers(kind.fewest_calls, kind.most_calls + 1))):
            child = schedule.add(
                self._step([*history, draw.tokens(kind.result_tokens)]),
                session=step.session,
                leader=step,
                pause=draw.seconds(kind.tool_seconds),
            )
            if draw.chance(kind.goes_on):
                self._branch(schedule, child, depth + 1)
