"""A trace's requests, each turn of a conversation after the one before it."""

from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle, repeat

import numpy as np

from hybrid_blocks.tools.profile.workload import Job
from hybrid_blocks.tools.trace import Trace


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
