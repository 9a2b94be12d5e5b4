"""The workload of a profile: its settings, and the requests of a steady load or of a trace."""

from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle, repeat

import msgspec
import numpy as np

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.vllm.level import Level

BATCHED = "batched"
"""Level ``manager`` with this package's scheduler."""
NATURAL_BATCHED = "natural-batched"
"""Level ``natural`` with this package's scheduler."""
FLOOR = "floor"
"""No scheduler: only the objects that any one must make."""
CHECKED = "+check"
"""The end of the name of a level that runs with ``HYBRID_BLOCKS_CHECK=1``."""


def level_of(name: str) -> Level:
    """Return the level of the block manager where a profile is named so.

    Raises ``InvalidArgumentError`` for a name that no profile has.
    """
    levels = {level.value: level for level in Level}
    levels |= {BATCHED: Level.MANAGER, NATURAL_BATCHED: Level.NATURAL, FLOOR: Level.OFF}
    level = levels.get(name.removesuffix(CHECKED))
    if level is None:
        raise InvalidArgumentError(f"{name!r} names no level; use {', '.join(levels)}")
    return level


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One level's run.

    ``requests`` run at a time. Without ``trace`` each has ``prompt_tokens`` and generates
    ``output_tokens``; four requests share their first ``shared_tokens``. Those of a ``trace``
    generate its recorded answers, each after the request that it follows. A step computes at most
    ``max_num_batched_tokens``. ``num_blocks`` 0 stands for enough. A model verifies ``num_drafts``
    drafts a step and accepts each with chance ``acceptance``, as long as it accepted those before.
    ``images`` puts one image into each prompt, ``logprobs`` is a number of log probabilities, and
    ``grammar`` constrains every fourth request. ``loras`` adapters take turns, and ``connector``
    attaches a KV connector that has nothing to load. ``dcp`` ranks of decode context parallelism
    share out each block of attention.
    """

    level: str
    groups: str = "hybrid"
    requests: int = 256
    prompt_tokens: int = 1024
    shared_tokens: int = 528
    output_tokens: int = 256
    trace: str | None = None
    max_num_batched_tokens: int = 8192
    num_blocks: int = 0
    warmup_steps: int = 300
    steps: int = 500
    seed: int = 0
    num_drafts: int = 0
    acceptance: float = 0.7
    images: bool = False
    logprobs: int = 0
    grammar: bool = False
    loras: int = 0
    connector: bool = False
    dcp: int = 1


# A prompt's token ids, and how many tokens to generate.
Job = tuple[list[int], int]

VOCABULARY = 100_000


def steady(prompt_tokens: int, shared_tokens: int, output_tokens: int, seed: int) -> Iterator[Job]:
    """Yield requests without end; every four share their first ``shared_tokens``.

    The first outputs are shorter, spread evenly, so that requests finish evenly from the start.
    """
    random = np.random.default_rng(seed)
    number = 0
    while True:
        prefix = random.integers(VOCABULARY, size=shared_tokens)
        for _ in range(4):
            rest = random.integers(VOCABULARY, size=prompt_tokens - shared_tokens)
            yield np.concatenate([prefix, rest]).tolist(), _staggered(number, output_tokens)
            number += 1


def _staggered(number: int, output_tokens: int) -> int:
    # Golden-ratio steps are even over any number of requests.
    return output_tokens if number >= 4096 else 1 + int(number * 0.618034 % 1 * output_tokens)


class Recorded:
    """Yields a trace's requests without end; arrival times and pauses are left out.

    A request that follows another one is yielded once that has ended, before any that follows none.
    These come in the trace's order, again and again. The model's answers are those of the trace, so
    a turn's prompt begins with the answers to the turns before it.

    Jobs are numbered as they come, from 0.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._first = cycle(np.flatnonzero(trace.follows < 0).tolist())
        self._followers: dict[int, list[int]] = {}
        for request, leader in enumerate(trace.follows.tolist()):
            self._followers.setdefault(leader, []).append(request)
        self._ready: deque[int] = deque()
        self._num_jobs = 0
        self._running: dict[int, int] = {}
        self._answers: dict[int, Iterator[int]] = {}

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        """Return the next request's prompt and how many tokens it generates."""
        request = self._ready.popleft() if self._ready else next(self._first)
        tokens = self._trace.token_ids(request).tolist()
        num_prompt = int(self._trace.prompt_tokens[request])
        self._running[self._num_jobs] = request
        # A model that drafts may go past the end.
        self._answers[self._num_jobs] = chain(tokens[num_prompt:], repeat(tokens[-1]))
        self._num_jobs += 1
        return tokens[:num_prompt], len(tokens) - num_prompt

    def answer(self, number: int) -> Iterator[int]:
        """Return the tokens that the job of that number still generates."""
        return self._answers[number]

    def end(self, number: int) -> None:
        """Let those begin that follow the job of that number."""
        del self._answers[number]
        self._ready.extend(self._followers.get(self._running.pop(number), ()))
