"""Workloads that only tests and benchmarks generate, and small ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hybrid_blocks.tools.trace import Trace, generate_workload
from hybrid_blocks.tools.trace.builder import Span, TraceBuilder
from hybrid_blocks.tools.trace.sessions import Draw, LogNormal, Prefixes, Schedule, Sessions, fill
from hybrid_blocks.tools.trace.workloads import BranchingTools, Chats, Documents


@dataclass(frozen=True, kw_only=True)
class SinglePrompts(Sessions):
    """A prompt is one of a few preambles, and tokens that no later prompt repeats."""

    sessions_per_second: float = 2.0
    prefixes: Prefixes = Prefixes(number=12, popularity=1.0, tokens=(600.0, 0.8))
    prompt_tokens: LogNormal = (2_000.0, 1.1)
    most_prompt_tokens: int = 30_000
    output_tokens: LogNormal = (200.0, 0.9)

    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        preamble = draw.prefix()
        prompt = draw.tokens(self.prompt_tokens, self.most_prompt_tokens)
        output = draw.tokens(self.output_tokens)
        schedule.add([preamble, prompt, output], session=session, time=time)


@dataclass(frozen=True, kw_only=True)
class Templates(Sessions):
    """Prompts share a prefix that does not end where the last prompt's ended.

    A prompt is the first tokens of a template, and tokens that no later prompt repeats. A template
    is cut at one of its few lengths. Each prompt draws its own, at or a little below that cut.
    """

    sessions_per_second: float = 2.0
    prefixes: Prefixes = Prefixes(number=6, popularity=1.0, tokens=(5_500.0, 0.25))
    cuts: tuple[float, ...] = (0.75, 0.85, 1.0)
    spread: float = 0.02
    prompt_tokens: LogNormal = (500.0, 0.9)
    most_prompt_tokens: int = 8_000
    output_tokens: LogNormal = (150.0, 0.8)

    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        prompt = draw.tokens(self.prompt_tokens, self.most_prompt_tokens)
        output = draw.tokens(self.output_tokens)
        schedule.add([self._cut(draw), prompt, output], session=session, time=time)

    def _cut(self, draw: Draw) -> Span:
        first, count = draw.prefix()
        share = float(draw.rng.choice(self.cuts)) * (1 - self.spread * draw.rng.random())
        return first, max(1, round(count * share))


@dataclass(frozen=True, kw_only=True)
class CodeRequests(Sessions):
    """Prompts that share nothing, of the lengths of Azure's code requests: long, short answers."""

    sessions_per_second: float = 2.0
    prefixes: Prefixes = Prefixes(number=0, popularity=1.0, tokens=(1.0, 0.0))
    prompt_tokens: LogNormal = (1_500.0, 0.9)
    most_prompt_tokens: int = 7_500
    output_tokens: LogNormal = (13.0, 1.0)

    def open(self, draw: Draw, schedule: Schedule, session: int, time: float) -> None:
        prompt = draw.tokens(self.prompt_tokens, self.most_prompt_tokens)
        schedule.add([prompt, draw.tokens(self.output_tokens)], session=session, time=time)


LOADS: dict[str, tuple[Sessions, ...]] = {
    "code": (CodeRequests(),),
    "single": (SinglePrompts(),),
    "templates": (Templates(),),
    "changing": (Documents(), Chats()),
    "changing back": (Chats(), Documents()),
}


def generate(name: str, seed: int = 0, num_requests: int = 2000) -> Trace:
    """Make one of `LOADS`, or a workload of the package."""
    if name not in LOADS:
        return generate_workload(name, seed, num_requests)
    return mix(LOADS[name], seed, num_requests, f"{name}, seed {seed}")


def mix(kinds: tuple[Sessions, ...], seed: int, num_requests: int, name: str) -> Trace:
    """Make a workload of kinds that follow each other, each with an equal part of the requests."""
    builder, rng, time = TraceBuilder(name), np.random.default_rng(seed), 0.0
    for part, kind in enumerate(kinds, start=1):
        missing = num_requests * part // len(kinds) - len(builder)
        time = fill(kind, builder, rng, missing, time)
    return builder.build()


_FEW = Prefixes(number=3, popularity=1.1, tokens=(40.0, 0.5))
_OFTEN: Any = {"sessions_per_second": 20.0, "prefixes": _FEW}
_SMALL = (
    Chats(
        **_OFTEN,
        message_tokens=(20.0, 1.0),
        output_tokens=(15.0, 0.8),
        pause_seconds=(0.05, 1.0),
        most_tokens=250,
    ),
    BranchingTools(
        **_OFTEN,
        task_tokens=(20.0, 1.0),
        ask_tokens=(1, 9),
        result_tokens=(20.0, 0.8),
        output_tokens=(15.0, 0.8),
        most_steps=3,
        tool_seconds=(0.05, 1.0),
    ),
)


def small(seed: int, num_requests: int = 30) -> Trace:
    """Make conversations and branching tasks of some hundred tokens."""
    return mix(_SMALL, seed, num_requests, f"small, seed {seed}")
