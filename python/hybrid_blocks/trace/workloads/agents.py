"""Coding agents: long sessions that grow by tool results, with subagents and compactions."""

from dataclasses import dataclass

from hybrid_blocks.trace.builder import Span
from hybrid_blocks.trace.workloads.draw import Draw, LogNormal
from hybrid_blocks.trace.workloads.schedule import Planned, Schedule
from hybrid_blocks.trace.workloads.sessions import Prefixes, Source


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
