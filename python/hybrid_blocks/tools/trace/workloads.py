"""Generated workloads of known kinds, each a function of its seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hybrid_blocks.tools.trace.builder import Span, TraceBuilder
from hybrid_blocks.tools.trace.errors import TraceError
from hybrid_blocks.tools.trace.sessions import (
    Draw,
    LogNormal,
    Planned,
    Prefixes,
    Schedule,
    Sessions,
    fill,
)
from hybrid_blocks.tools.trace.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Chats(Sessions):
    """A turn repeats everything before it and adds a message.

    Chat templates end a prompt with words that the history leaves out. A third of the clients leave
    the answers of earlier turns out too. The longer a conversation has been, the likelier it
    continues: ``(turns + 1) / (turns + 4)``, in every turn.
    """

    sessions_per_second: float = 1.2
    prefixes: Prefixes = Prefixes(number=10, popularity=1.1, tokens=(700.0, 0.9))
    message_tokens: LogNormal = (900.0, 1.4)
    most_message_tokens: int = 12_000
    template_tokens: int = 7
    leaves_answers_out: float = 0.33
    output_tokens: LogNormal = (250.0, 0.8)
    pause_seconds: LogNormal = (40.0, 1.1)
    most_tokens: int = 48_000

    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        """Plan all turns of one conversation."""
        history = [draw.prefix()]
        answers = not draw.chance(self.leaves_answers_out)
        last, turns = None, 0
        while last is None or draw.chance((turns + 1) / (turns + 4)):
            history = [*history, draw.tokens(self.message_tokens, self.most_message_tokens)]
            output = draw.tokens(self.output_tokens)
            if last is not None and sum(count for _, count in history) > self.most_tokens:
                return
            last = schedule.add(
                [*history, draw.builder.fresh(self.template_tokens), output],
                session=session,
                time=time,
                leader=last,
                pause=draw.seconds(self.pause_seconds),
            )
            history = [*history, output] if answers else history
            turns += 1


@dataclass(frozen=True, kw_only=True)
class Documents(Sessions):
    """A prompt is a preamble, a document, a question.

    The preambles belong to applications and are shared by many documents. The length of a question
    is log-uniform. The next question about a document leaves the earlier prompt 20 to 1,300 tokens
    before its end. A follow-up repeats the exchange before it, answer included. Users do not wait
    for each other: only a follow-up follows another request.
    """

    sessions_per_second: float = 0.5
    prefixes: Prefixes = Prefixes(number=5, popularity=1.0, tokens=(600.0, 0.6))
    document_tokens: LogNormal = (12_500.0, 0.55)
    most_document_tokens: int = 60_000
    asked_once: float = 0.4
    one_more_question: float = 0.6
    question_tokens: tuple[int, int] = (20, 1_300)
    follow_up: float = 0.15
    output_tokens: LogNormal = (220.0, 0.8)
    pause_seconds: LogNormal = (120.0, 1.2)

    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        """Plan all questions about one document."""
        document = [draw.prefix(), draw.tokens(self.document_tokens, self.most_document_tokens)]
        more = not draw.chance(self.asked_once)
        last = None
        while True:
            follows = last is not None and draw.chance(self.follow_up)
            before = last.spans if last is not None and follows else document
            question = draw.tokens_between(*self.question_tokens)
            last = schedule.add(
                [*before, question, draw.tokens(self.output_tokens)],
                session=session,
                time=time,
                leader=last if follows else None,
                pause=draw.seconds(self.pause_seconds),
            )
            if not more:
                return
            time = last.time + draw.seconds(self.pause_seconds)
            more = draw.chance(self.one_more_question)


@dataclass(frozen=True, kw_only=True)
class Agents(Sessions):
    """A session opens with its program's system prompt and tools, then a task.

    Each turn repeats everything before it and adds a tool result, after a short pause, or what a
    person wrote, after a long one. A quarter of the programs leave the answers of earlier turns
    out, because they hold thoughts. A history that grows too long is replaced by a summary. A
    subagent has a system prompt, a task and a session of its own.
    """

    sessions_per_second: float = 0.06
    prefixes: Prefixes = Prefixes(
        number=4, popularity=1.0, tokens=(9_000.0, 0.4), of_subagents=(4_000.0, 0.3)
    )
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

    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        """Plan a session and its subagents."""
        system = draw.prefix()
        opening = schedule.add(self._opening(draw, system), session=session, time=time)
        self._run(draw, schedule, opening, self.one_more_turn)

    def _opening(self, draw: Draw, system: Span) -> list[Span]:
        return [system, draw.tokens(self.task_tokens), draw.tokens(self.output_tokens)]

    def _run(self, draw: Draw, schedule: Schedule, opening: Planned, one_more_turn: float) -> None:
        system = opening.spans[0]
        answers = not draw.chance(self.leaves_answers_out)
        last = opening
        while draw.chance(one_more_turn):
            if system != draw.of_subagents and draw.chance(self.subagent):
                self._delegate(draw, schedule, last)
            history = list(last.spans if answers else last.spans[:-1])
            if sum(count for _, count in history) > self.most_tokens:
                history = [system, draw.tokens(self.summary_tokens)]
            law = self.person_seconds if draw.chance(self.person) else self.tool_seconds
            result = draw.tokens(self.result_tokens, self.most_result_tokens)
            last = schedule.add(
                [*history, result, draw.tokens(self.output_tokens)],
                session=opening.session,
                leader=last,
                pause=draw.seconds(law),
            )

    def _delegate(self, draw: Draw, schedule: Schedule, caller: Planned) -> None:
        assert draw.of_subagents is not None
        opening = schedule.add(
            self._opening(draw, draw.of_subagents),
            session=draw.builder.new_session(),
            leader=caller,
            pause=0.1,
        )
        self._run(draw, schedule, opening, self.one_more_subagent_turn)


@dataclass(frozen=True, kw_only=True)
class BranchingTools(Sessions):
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

    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        """Plan a task and all its branches."""
        spans = self._step(draw, [draw.prefix(), draw.tokens(self.task_tokens)])
        self._branch(draw, schedule, schedule.add(spans, session=session, time=time), 1)

    def _step(self, draw: Draw, history: list[Span]) -> list[Span]:
        return [*history, draw.tokens_between(*self.ask_tokens), draw.tokens(self.output_tokens)]

    def _branch(self, draw: Draw, schedule: Schedule, step: Planned, depth: int) -> None:
        if depth == self.most_steps:
            return
        history = list(step.spans if draw.chance(self.gets_answer) else step.spans[:-2])
        for _ in range(int(draw.rng.integers(self.fewest_calls, self.most_calls + 1))):
            child = schedule.add(
                self._step(draw, [*history, draw.tokens(self.result_tokens)]),
                session=step.session,
                leader=step,
                pause=draw.seconds(self.tool_seconds),
            )
            if draw.chance(self.goes_on):
                self._branch(draw, schedule, child, depth + 1)


KINDS: Final[Mapping[str, Sessions]] = {
    "conversations": Chats(),
    "agents": Agents(),
    "documents": Documents(),
    "tools": BranchingTools(),
}
SEATS: Final = "seats"
WORKLOADS: Final = (*KINDS, SEATS)
"""The names of ``--workload``; the first is generated unless another is named."""

FIRST_TOKENS: Final = 4096
MORE_TOKENS: Final = 512
TURNS: Final = 6
"""Prompts of a seat before another user takes it, who starts from the first length again."""


def generate_workload(
    name: str, seed: int = 0, num_requests: int = 2000, num_seats: int = 16
) -> Trace:
    """Make a workload; equal arguments make equal workloads.

    Requests are in the order of their arrival if none ever waited. ``num_seats`` is for ``seats``,
    which draws nothing: every seed makes the same.

    Raises: TraceError: there is no workload of this name, or its number of requests is 0.
    """
    if num_requests < 1:
        raise TraceError(f"num_requests is {num_requests}; it must be at least 1")
    if name == SEATS:
        return generate_seats(num_seats, num_requests)
    if name not in KINDS:
        raise TraceError(f"{name!r} is no generated workload; known are {', '.join(WORKLOADS)}")
    builder = TraceBuilder(f"{name}, seed {seed}")
    fill(KINDS[name], builder, np.random.default_rng(seed), num_requests)
    return builder.build()


def generate_seats(num_seats: int, num_requests: int) -> Trace:
    """Make requests of seats that take turns; no request waits for any but its seat's last one.

    Each prompt is its seat's last one and 512 tokens more, from 4,096 on. An answer is one token,
    which no prompt repeats.

    Raises:
        TraceError: there is no seat.
    """
    if num_seats < 1:
        raise TraceError(f"num_seats is {num_seats}; it must be at least 1")
    builder = TraceBuilder(f"{num_seats} seats")
    prompts: list[list[Span]] = [[] for _ in range(num_seats)]
    sessions = [0] * num_seats
    for number in range(num_requests):
        turn, seat = divmod(number, num_seats)
        if turn % TURNS == 0:
            prompts[seat], sessions[seat] = [builder.fresh(FIRST_TOKENS)], builder.new_session()
        else:
            prompts[seat].append(builder.fresh(MORE_TOKENS))
        builder.add(
            [*prompts[seat], builder.fresh(1)],
            arrival=0.0,
            prompt_tokens=FIRST_TOKENS + MORE_TOKENS * (turn % TURNS),
            output_tokens=1,
            follows=number - num_seats if turn else -1,
            session=sessions[seat],
        )
    return builder.build()


__all__ = [
    "KINDS",
    "SEATS",
    "WORKLOADS",
    "Agents",
    "BranchingTools",
    "Chats",
    "Documents",
    "generate_seats",
    "generate_workload",
]
