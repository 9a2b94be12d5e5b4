"""Programs: agents whose sessions grow by tool results, and tasks that branch."""

from dataclasses import dataclass

from hybrid_blocks.tools.trace.builder import Span
from hybrid_blocks.tools.trace.workloads.sessions import (
    Draw,
    LogNormal,
    Planned,
    Prefixes,
    Schedule,
    Source,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """A session opens with its program's system prompt and tools, then a task.

    Each turn repeats everything before it and adds a tool result, after a short pause, or what a
    person wrote, after a long one. A quarter of the programs leave the answers of earlier turns
    out, because they hold thoughts. A history that grows too long is replaced by a summary. A
    subagent has a system prompt, a task and a session of its own.
    """

    sessions_per_second: float = 0.06
    prefixes: Prefixes = Prefixes(number=4, popularity=1.0, tokens=(9_000.0, 0.4))
    subagent_tokens: LogNormal = (4_000.0, 0.3)
    task_tokens: LogNormal = (400.0, 1.0)
    result_tokens: LogNormal = (700.0, 1.2)
    most_result_tokens: int = 12_000
    output_tokens: LogNormal = (180.0, 0.9)
    one_more_turn: float = 0.95
    one_more_subagent_turn: float = 0.8
    person: float = 0.12
    tool_seconds: LogNormal = (3.0, 1.0)
    person_seconds: LogNormal = (45.0, 1.0)
    subagent: float = 0.03
    leaves_answers_out: float = 0.25
    most_tokens: int = 48_000
    summary_tokens: LogNormal = (1_500.0, 0.4)

    def source(self, draw: Draw) -> "Programs":
        """Make the system prompts."""
        return Programs(self, draw)


class Programs(Source[Agents]):
    """Opens sessions of agents."""

    def __init__(self, kind: Agents, draw: Draw) -> None:
        super().__init__(kind, draw)
        self._subagent = draw.tokens(kind.subagent_tokens)

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan a session and its subagents."""
        system = self.prefix()
        opening = schedule.add(self._opening(system), session=session, time=time)
        self._run(schedule, system, opening, self.kind.one_more_turn)

    def _opening(self, system: Span) -> list[Span]:
        draw = self.draw
        return [system, draw.tokens(self.kind.task_tokens), draw.tokens(self.kind.output_tokens)]

    def _run(
        self, schedule: Schedule, system: Span, opening: Planned, one_more_turn: float
    ) -> None:
        kind, draw = self.kind, self.draw
        answers = not draw.chance(kind.leaves_answers_out)
        last = opening
        while draw.chance(one_more_turn):
            if opening.spans[0] != self._subagent and draw.chance(kind.subagent):
                self._delegate(schedule, last)
            history = list(last.spans if answers else last.spans[:-1])
            if sum(count for _, count in history) > kind.most_tokens:
                history = [system, draw.tokens(kind.summary_tokens)]
            law = kind.person_seconds if draw.chance(kind.person) else kind.tool_seconds
            result = draw.tokens(kind.result_tokens, kind.most_result_tokens)
            last = schedule.add(
                [*history, result, draw.tokens(kind.output_tokens)],
                session=opening.session,
                leader=last,
                pause=draw.seconds(law),
            )

    def _delegate(self, schedule: Schedule, caller: Planned) -> None:
        opening = schedule.add(
            self._opening(self._subagent),
            session=self.draw.builder.new_session(),
            leader=caller,
            pause=0.1,
        )
        self._run(schedule, self._subagent, opening, self.kind.one_more_subagent_turn)


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
