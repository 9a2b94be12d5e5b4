"""The waiting queue, and how a request leaves it."""

from collections import deque

import numpy as np

from hybrid_blocks.manager import Manager
from hybrid_blocks.replay.batch import Batch
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.counters import Counters
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.meter import Meter
from hybrid_blocks.replay.requests import Pending, Requests


class Admission:
    """Admits waiting requests, first come, first served; a preempted one comes before all.

    A request is admitted if the blocks for all its known tokens are free beside the watermark. Hit
    blocks count as needing none, though one without an owner takes a free place too: the manager,
    which knows, has the last word on the first chunk. A request that is refused keeps all behind
    it waiting, and is looked at again once blocks were given back.
    """

    def __init__(
        self,
        *,
        manager: Manager,
        config: EngineConfig,
        requests: Requests,
        batch: Batch,
        counters: Counters,
        meter: Meter,
    ) -> None:
        self._manager = manager
        self._config = config
        self._requests = requests
        self._batch = batch
        self._counters = counters
        self._meter = meter
        self._waiting: deque[int] = deque()
        self._watermark_blocks = int(config.watermark * manager.num_blocks)
        self._is_refused = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether a request that arrives now, or waits already, could join the batch."""
        return not self._is_refused and len(self._batch) < self._config.max_num_seqs

    def arrive(self, request: int) -> None:
        """Queue a request behind all others."""
        self._waiting.append(request)

    def preempt_last(self) -> None:
        """Take the request admitted last out of the batch and queue it before all others."""
        row = self._batch.pop()
        self._meter.call(self._manager.preempt, np.array([row["handle"]]))
        self._requests.preempt(row["request"], row["handle"], row["known"], row["computed"])
        self._waiting.appendleft(row["request"])
        self._counters.preemptions += 1
        self.retry()

    def retry(self) -> None:
        """Tell that blocks were given back."""
        self._is_refused = False

    def admit(self, budget: int) -> list[int]:
        """Admit what fits into ``budget`` tokens; return the first chunk of each request."""
        chunks = []
        while self._waiting and budget > 0 and self.is_open:
            request = self._waiting[0]
            state = self._requests.look(request)
            matched = self._meter.call(self._manager.match_prefix, state.handle)
            chunk = min(state.known - matched, budget)
            if not self._fits(state, matched, chunk):
                self._refuse(request, state)
                break
            self._waiting.popleft()
            self._run(request, state, matched)
            chunks.append(chunk)
            budget -= chunk
        self._counters.peak_running = max(self._counters.peak_running, len(self._batch))
        return chunks

    def _fits(self, state: Pending, matched: int, chunk: int) -> bool:
        watermark = self._watermark_blocks if self._batch else 0
        needed = self._config.blocks(state.known) - matched // self._config.block_size
        if needed + watermark > self._manager.num_free_blocks:
            return False
        handles, chunks = np.array([state.handle]), np.array([chunk], dtype=np.int32)
        return self._meter.call(self._manager.allocate, handles, chunks) == 1

    def _refuse(self, request: int, state: Pending) -> None:
        if not self._batch:
            raise ReplayError(
                f"request {request} of {state.known} known tokens cannot be admitted into "
                f"{self._manager.num_free_blocks} free blocks though nothing runs"
            )
        self._is_refused = True

    def _run(self, request: int, state: Pending, matched: int) -> None:
        requests, counters = self._requests, self._counters
        if state.admitted:
            counters.recomputed_tokens += max(state.computed - matched, 0)
        else:
            counters.prompt_tokens += state.known
            counters.prompt_blocks += self._config.blocks(state.known)
            counters.hit_tokens += matched
            counters.hit_blocks += matched // self._config.block_size
        requests.start(request)
        self._batch.append(
            request=request,
            handle=state.handle,
            computed=matched,
            known=state.known,
            final=requests.final[request],
            next_token=requests.output_start[request] + state.known - requests.prompt[request],
        )
