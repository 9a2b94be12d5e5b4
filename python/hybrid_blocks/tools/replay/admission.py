"""The waiting queue, and how a request leaves it."""

from collections import deque
from collections.abc import Callable

import numpy as np

from hybrid_blocks.tools.replay.batch import Batch, Int64s
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import EngineConfig
from hybrid_blocks.tools.replay.counters import Counters, Meter
from hybrid_blocks.tools.replay.errors import RefusedRequestError
from hybrid_blocks.tools.replay.flops import flops_of
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.replay.requests import Pending, Requests


class Admission:
    """Admits waiting requests, first come, first served; a preempted one comes before all.

    A request is admitted if there is room for all its known tokens beside the watermark. One that
    is refused keeps all behind it waiting, and is looked at again once blocks were given back. One
    that waits for another's checkpoint is passed over, and keeps its place.
    """

    def __init__(
        self,
        *,
        manager: ReplayManager,
        cache: Cache,
        config: EngineConfig,
        requests: Requests,
        batch: Batch,
        counters: Counters,
        timeline: Timeline,
        meter: Meter,
        on_hit: Callable[[int, int], None],
    ) -> None:
        self._manager = manager
        self._config = config
        self._requests = requests
        self._batch = batch
        self._counters = counters
        self._timeline = timeline
        self._on_hit = on_hit
        self._meter = meter
        self._waiting: deque[int] = deque()
        self._block_size = cache.geometry.hash_block_size
        self._flops = flops_of(cache.model) if cache.model else None
        self._is_refused = False
        self._live_when_refused: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_short_of_memory(self) -> bool:
        """Whether the first that waits was refused for want of memory."""
        return self._is_refused and bool(self._waiting)

    def waits_needlessly(self, computed: Int64s) -> bool:
        """Return whether the first that waits was refused though its known tokens have room.

        ``computed`` tokens of each running request are computed or have room already; to be asked
        before the step in which they are computed gives anything back.
        """
        if not self.is_short_of_memory:
            return False
        known = self._requests.register(self._waiting[0]).known
        total = self._batch.known
        rows = np.flatnonzero(total - computed > 1)
        under_way = list(zip(computed[rows].tolist(), total[rows].tolist(), strict=True))
        return self._manager.could_hold(known, under_way) is True

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits and was not refused."""
        return bool(self._waiting) and not self._is_refused and self.is_open

    @property
    def is_open(self) -> bool:
        """Whether a request that arrives now, or waits already, could join the batch."""
        return not self.is_full and len(self._batch) < self._config.max_num_seqs

    @property
    def is_full(self) -> bool:
        """Whether the first was refused and would be again, as far as that is known without a try.

        No pool has fewer live blocks than then, and no blocks were promised to prompts under way.
        Such prompts may need fewer than were promised.
        """
        if self._manager.looks_again or not self._is_refused or not self._live_when_refused:
            return False
        live = self._manager.num_live_blocks
        return all(now >= then for now, then in zip(live, self._live_when_refused, strict=True))

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
        chunks: list[int] = []
        passed_over: list[int] = []
        while self._waiting and budget > 0 and self.is_open:
            self._is_refused = False
            request = self._waiting[0]
            state = self._requests.register(request)
            if self._meter.call(self._manager.waits_for_checkpoint, state.handle):
                passed_over.append(self._waiting.popleft())
                continue
            matched = self._meter.call(self._manager.match_prefix, state.handle)
            chunk = self._first_chunk(state, matched, budget)
            if chunk == 0:
                break
            if not self._allocate(state, chunk):
                if self._batch:
                    self._refuse()
                    break
                # Alone it may fit without holding what was hit beside its own state.
                matched, chunk = 0, self._first_chunk(state, 0, budget)
                if not self._allocate(state, chunk):
                    raise self._hopeless(request, state)
            self._waiting.popleft()
            self._run(request, state, matched)
            chunks.append(chunk)
            budget -= chunk
        self._waiting.extendleft(reversed(passed_over))
        self._counters.peak_running = max(self._counters.peak_running, len(self._batch))
        return chunks

    def _refuse(self) -> None:
        self._is_refused = True
        under_way = bool((self._batch.known - self._batch.computed > 1).any())
        self._live_when_refused = () if under_way else self._manager.num_live_blocks

    def _first_chunk(self, state: Pending, matched: int, budget: int) -> int:
        most = min(state.known - matched, budget)
        return self._meter.call(self._manager.chunk, state.handle, matched, most)

    def _allocate(self, state: Pending, chunk: int) -> bool:
        handles, chunks = np.array([state.handle]), np.array([chunk], dtype=np.int32)
        return self._meter.call(self._manager.allocate, handles, chunks) == 1

    def _hopeless(self, request: int, state: Pending) -> RefusedRequestError:
        return RefusedRequestError(
            request,
            f"request {request} of {state.known} known tokens cannot be admitted into "
            f"{self._manager.num_free_blocks} free blocks though nothing runs",
        )

    def _run(self, request: int, state: Pending, matched: int) -> None:
        requests, counters = self._requests, self._counters
        if state.admitted:
            counters.recomputed_tokens += max(state.computed - matched, 0)
        else:
            counters.prompt_tokens += state.known
            counters.prompt_blocks += -(-state.known // self._block_size)
            counters.hit_tokens += matched
            counters.hit_blocks += matched // self._block_size
            self._timeline.admit(request, matched)
            self._on_hit(request, matched)
            if self._flops is not None:
                counters.saved_flops += self._flops.of(matched)
        requests.start(request)
        self._batch.append(
            request=request,
            handle=state.handle,
            computed=matched,
            known=state.known,
            final=requests.final[request],
            next_token=requests.output_start[request] + state.known - requests.prompt[request],
        )
