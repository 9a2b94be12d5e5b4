"""A virtual engine whose requests become known while it runs."""

import base64
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hybrid_blocks.tools.replay import Cache, EngineConfig, VirtualEngine
from hybrid_blocks.tools.replay.clock import Arrivals, Timeline
from hybrid_blocks.tools.replay.config import RefusedRequestError
from hybrid_blocks.tools.replay.limits import RequestLimit
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.tools.trace.recorded import Record
from hybrid_blocks.tools.trace.trace import Int32s

_DIGEST_BYTES: Final = 9
_TOKEN_BYTES: Final = 3
_OWN: Final = 1 << 30
"""Token ids from here on belong to one request alone."""


@dataclass(slots=True, eq=False)
class Request:
    """A request of a record.

    Attributes:
        record: its line.
        serial: its number since the shadow began.
        arrival: when it arrives, on the replay's clock.
        follows: the serial of the request that its prompt continues, which must have finished
            first; -1 for none.
        is_known: whether earlier lines hold what the engine found of it.
        found: the prompt tokens that each replay found, by its name.
    """

    record: Record
    serial: int
    arrival: float
    follows: int = -1
    is_known: bool = True
    found: dict[str, int] = field(default_factory=dict)

    def digests(self) -> Int32s:
        """Return the digests of the blocks as three numbers each, shape ``[n, 3]``."""
        held = np.frombuffer(base64.b64decode(self.record.blocks), dtype=np.uint8)
        bytes_ = held.reshape(-1, _DIGEST_BYTES // _TOKEN_BYTES, _TOKEN_BYTES).astype(np.int32)
        return (bytes_[:, :, 0] << 16) | (bytes_[:, :, 1] << 8) | bytes_[:, :, 2]

    def token_ids(self) -> Int32s:
        """Make token ids that two requests share as far as they share digests.

        No memory of earlier digests is needed: the first tokens of a block spell its digest.
        """
        record, digests = self.record, self.digests()
        size = record.block_tokens
        tokens = np.zeros(record.prompt_tokens + max(record.output_tokens, 1), dtype=np.int32)
        whole = tokens[: len(digests) * size].reshape(-1, size)
        whole[:, : digests.shape[1]] = digests[:, :size]
        tokens[len(digests) * size :][:1] = _OWN + self.serial % _OWN
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Trace):
    """The requests that are known now and not finished."""

    requests: tuple[Request, ...]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "Window":
        """Join requests, leaders before those that follow them."""
        numbers = {one.serial: number for number, one in enumerate(requests)}
        leaders = [numbers.get(one.follows, -1) for one in requests]
        records = [one.record for one in requests]
        none = np.zeros(0, dtype=np.int32)
        return cls(
            name="",
            requests=tuple(requests),
            arrival=np.array([one.arrival for one in requests], dtype=np.float64),
            follows=np.array(leaders, dtype=np.int32),
            session=none,
            prompt_tokens=np.array([it.prompt_tokens for it in records], dtype=np.int32),
            output_tokens=np.array([max(it.output_tokens, 1) for it in records], dtype=np.int32),
            span_start=np.zeros(1, dtype=np.int64),
            span_first=none,
            span_count=none,
        )

    def token_ids(self, request: int) -> Int32s:
        """Make the token ids of one request."""
        return self.requests[request].token_ids()

    def request_id(self, request: int) -> str:
        """Return a name that no other request of any window has."""
        return str(self.requests[request].serial)


class _Arrivals(Arrivals):
    """A follower arrives at its own time, or once its leader has finished."""

    def __init__(self, window: Window, num_arrived: int) -> None:
        super().__init__(window)
        self._heap = [one for one in self._heap if one[1] >= num_arrived]
        heapq.heapify(self._heap)

    @property
    def left(self) -> list[int]:
        """Requests that have not arrived."""
        following = (it for some in self._followers.values() for it in some)
        return sorted([*(request for _, request in self._heap), *following])

    def finish(self, request: int, now: float) -> None:
        """Let the requests that follow this one arrive."""
        for follower in self._followers.pop(request, ()):
            due = self.due[follower] = max(now, self._delay[follower])
            heapq.heappush(self._heap, (due, follower))


class LiveEngine(VirtualEngine):
    """Serves requests as they become known, and forgets the finished ones.

    Its decisions are those of an engine that knows all requests from the beginning.

    Attributes:
        first_tokens: seconds to the first token of the requests that finished since it was cleared.
        num_refused: requests that found no room though nothing else ran.
    """

    def __init__(
        self,
        manager: ReplayManager,
        cache: Cache,
        config: EngineConfig,
        *,
        limits: Sequence[RequestLimit],
        on_hit: Callable[[Request, int], None],
    ) -> None:
        self.first_tokens: list[float] = []
        self.num_refused = 0
        self._window = Window.of(())
        super().__init__(
            *(self._window, manager, cache, config),
            limits=limits,
            on_hit=lambda number, tokens: on_hit(self._window.requests[number], tokens),
        )

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room or for their turn."""
        return len(self._waiting)

    def serve(self, new: Sequence[Request], until: float) -> None:
        """Serve until a time before which every request is known: ``new`` ones are the last."""
        self._renew(new)
        self._arrivals.horizon = until
        while self.now < until and (self._is_busy or self._arrivals.next_time < float("inf")):
            try:
                self._advance()
            except RefusedRequestError as error:
                self._leave_out(error.request)
        self._arrive()
        latencies = self.latencies
        taken = latencies.first_token - latencies.arrived
        self.first_tokens += taken[np.isfinite(latencies.finished)].tolist()

    def _renew(self, new: Sequence[Request]) -> None:
        """Begin a window of the unfinished requests and the new ones, which get new numbers."""
        before, times, window = self._requests, self.latencies, self._window
        arrived = sorted({*self._batch.request.tolist(), *self._waiting})
        left = self._arrivals.left if isinstance(self._arrivals, _Arrivals) else []
        self._window = Window.of([*(window.requests[it] for it in (*arrived, *left)), *new])
        self._read(self._window)
        self._arrivals = _Arrivals(self._window, len(arrived))
        number = dict(zip(arrived, range(len(arrived)), strict=True))
        for old, one in number.items():
            self._requests.carry(before, old, one)
            self.latencies.arrived[one] = times.arrived[old]
            self.latencies.first_token[one] = times.first_token[old]
        self._waiting = type(self._waiting)(number[it] for it in self._waiting)
        for row, old in enumerate(self._batch.request.tolist()):
            self._batch.request[row] = number[old]
            moved = self._requests.output_start[number[old]] - before.output_start[old]
            self._batch.next_token[row] += moved
        self.timeline = Timeline()
        self.timeline.seconds.append(self.now)
        del self.meter.steps[:]

    def _leave_out(self, request: int) -> None:
        """Forget a request that cannot run."""
        if request in self._batch.request:
            self._preempt_last()
        self._waiting.remove(request)
        pending = self._requests.register(request)
        self._manager.free(np.array([pending.handle]))
        self._requests.start(request)
        self._arrivals.finish(request, self.now)
        self._is_refused = False
        self.num_refused += 1
