"""A record's requests, replayed side by side as they become known, and compared."""

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from hybrid_blocks.tools.replay import ReplayError
from hybrid_blocks.tools.replay.fit import fit
from hybrid_blocks.tools.shadow.engine import LiveEngine, Request
from hybrid_blocks.tools.trace.recorded import Record, split_digests
from hybrid_blocks.tools.trace.trace import Int32s

ENGINE: Final = "engine"
"""The engine that wrote the record, where replays are named."""

_BACK_S: Final = 5.0
"""Requests end in the order of their lines, but for this time and a clock that jumps."""
_QUIET_S: Final = 300.0
_WINDOW_S: Final = 1.0
_FIRST_LAG_S: Final = 30.0
"""The wait for long requests before any is known."""
_MOST_LAG_S: Final = 600.0
_LAG_KEPT: Final = 0.9999
"""The share of the wait for long requests that one more request leaves of it."""
_MOST_WAITING_BYTES: Final = 64 << 20
_MOST_WAITING: Final = 10_000
"""Requests of a replay whose clock is too slow for the load."""
_FITTED: Final = 512
_LEAST_FITTED: Final = 64
"""Requests to which the time of a step is fitted; fewer of a busy machine tell little."""
_MOST_ENDS: Final = 1 << 16
_SEEN_BITS: Final = 29
"""Bits of a place in a filter of 64 MiB; a file of 1 GiB sets a quarter of them."""
_WORD_BITS: Final = 24

OnHit = Callable[[str, Request, int], None]
Counts = Counter[tuple[str, str]]
"""By the name of a figure in `SHADOW_COUNTERS`, and its label."""


class Shadow:
    """Replays a record as it grows; each file of it begins with an empty cache.

    A line comes when its request ends. So the replays stay behind the record by about the time of
    its longest request; a request whose line comes later still arrives at once.

    Attributes:
        counts: all since the shadow began.
        own: the name of the replay at the engine's own level.
        say: tells what else happens.
    """

    def __init__(
        self,
        make: Callable[[OnHit], Mapping[str, LiveEngine]],
        own: str,
        say: Callable[[str], None],
        *,
        is_fitted: bool,
        block_tokens: int = 0,
    ) -> None:
        """Replay through the engines that ``make`` returns, which tell hits by their name.

        With ``is_fitted`` a step takes the time that is fitted to the record. Level natural hashes
        blocks of ``block_tokens``.
        """
        self.counts: Counts = Counter()
        self.own, self.say = own, say
        self._make, self._is_fitted, self._block_tokens = make, is_fitted, block_tokens
        self._serial = 0
        self._engines: Mapping[str, LiveEngine] = {}
        self._reset()

    def begin(self) -> None:
        """Begin with a new file: what was known of the last one is replayed to its end."""
        self.advance(float("inf"))
        self._engines = self._make(self._on_hit)
        self._reset()

    def _reset(self) -> None:
        self._preempted = dict.fromkeys(self._engines, 0)
        self._seen = np.zeros(1 << (_SEEN_BITS - 3), dtype=np.uint8)
        self._timed: deque[Record] = deque(maxlen=_FITTED)
        self._waiting: list[tuple[float, int, Request]] = []
        self._waiting_bytes = 0
        self._shift = self._newest = self._horizon = 0.0
        self._lag = _FIRST_LAG_S
        self._ends: dict[str, tuple[float, int]] = {}
        self._read_at = time.monotonic()

    def take(self, records: Iterable[Record]) -> None:
        """Take requests in the order of their lines, and replay what is known so far."""
        for record in records:
            self._take(record)
        if (horizon := self._newest - self._lag) >= self._horizon + _WINDOW_S:
            self.advance(horizon)

    def wait(self) -> None:
        """Let time pass in which the record does not grow."""
        passed = max(time.monotonic() - self._read_at - _BACK_S, 0.0)
        self.advance(self._newest + passed - self._lag)

    def advance(self, horizon: float) -> None:
        """Serve the requests that arrive before a time."""
        if not self._engines or horizon <= self._horizon:
            return
        self._horizon, new = horizon, []
        is_full = self._waiting_bytes > _MOST_WAITING_BYTES
        while self._waiting and (self._waiting[0][0] <= horizon or is_full):
            new.append(heapq.heappop(self._waiting)[2])
            self._waiting_bytes -= len(new[-1].record.blocks)
            self._place(new[-1])
        for name, engine in self._engines.items():
            if engine.num_waiting > _MOST_WAITING:
                self.counts["left_out", f"{name} full"] += len(new)
                engine.serve((), horizon)
            else:
                engine.serve(new, horizon)
            self.counts["preemptions", name] += engine.counters.preemptions - self._preempted[name]
            self._preempted[name] = engine.counters.preemptions
            self._add_first_tokens(name, engine.first_tokens)
            engine.first_tokens.clear()

    def peaks(self) -> dict[str, int]:
        """Return the most requests that ran at once in each replay since the last call."""
        found = {name: engine.counters.peak_running for name, engine in self._engines.items()}
        for engine in self._engines.values():
            engine.counters.peak_running = 0
        return found

    @property
    def behind(self) -> float:
        """Seconds of the record that were read and not replayed."""
        return max(self._newest - self._horizon, 0.0)

    def fit(self) -> None:
        """Fit the time of a step to the last requests, where no card's time is given."""
        if not self._is_fitted or len(self._timed) < _LEAST_FITTED:
            return
        for engine in self._engines.values():
            with suppress(ReplayError):
                step = fit(list(self._timed), engine.config.max_num_batched_tokens)
                engine.config = replace(engine.config, step_time=step)

    def _take(self, record: Record) -> None:
        if not self._timed and record.block_tokens > self._block_tokens > 0:
            self.say(
                f"the record tells apart blocks of {record.block_tokens:,} tokens, and level "
                f"natural blocks of {self._block_tokens}: it would find more than is said here"
            )
        arrival, taken = record.arrival + self._shift, record.finished or 0.0
        if record.finished is not None:
            back = self._newest - arrival - taken
            if back > _BACK_S:
                self.say(f"the engine's clock went back by {back:,.0f} s; later times are shifted")
                self._shift += back
                arrival += back
            elif self._newest and -back > _QUIET_S:
                self.say(f"no request ended for {-back:,.0f} s, or the clock went forward")
        self._newest = max(self._newest, arrival + taken)
        self._lag = max(self._lag * _LAG_KEPT, min(taken, _MOST_LAG_S))
        if arrival < self._horizon:
            self.counts["left_out", "late"] += 1
            arrival = self._horizon
        self._read_at = time.monotonic()
        num_timed = len(self._timed)
        self._timed.append(record)
        if num_timed < len(self._timed) in {_LEAST_FITTED, _FITTED}:
            self.fit()
        self.counts["requests", ""] += 1
        if record.first_token is not None:
            self._add_first_tokens(ENGINE, [record.first_token])
        self._serial += 1
        self._waiting_bytes += len(record.blocks)
        request = Request(record, self._serial, arrival)
        heapq.heappush(self._waiting, (arrival, self._serial, request))

    def _place(self, request: Request) -> None:
        """Note what a request shares with those that arrived before it."""
        record, digests = request.record, request.digests()
        if record.found_tokens:
            last = digests[: record.found_tokens // record.block_tokens][-1:]
            request.is_known = _are_set(self._seen, last)
            self.counts["left_out", "unseen"] += not request.is_known
        _set(self._seen, digests)
        names = split_digests(record.blocks)
        leader = next((self._ends[it] for it in reversed(names) if it in self._ends), None)
        if leader is not None and leader[0] <= request.arrival:
            request.follows = leader[1]
        if names and record.finished is not None:
            self._ends[names[-1]] = request.arrival + record.finished, request.serial
            if len(self._ends) > _MOST_ENDS:
                del self._ends[next(iter(self._ends))]

    def _on_hit(self, name: str, request: Request, tokens: int) -> None:
        """Note what a replay found, and compare once each has."""
        found, there, counts = request.found, request.record.found_tokens, self.counts
        found[name] = tokens
        if len(found) < len(self._engines) or there is None or not request.is_known:
            return
        apart = abs(found[self.own] - there)
        counts["compared", ""] += 1
        counts["differing", ""] += apart > 0
        counts["differing_tokens", ""] += apart
        counts["prompt_tokens", ""] += request.record.prompt_tokens
        for one, num in (*found.items(), (ENGINE, there)):
            counts["found_tokens", one] += num

    def _add_first_tokens(self, name: str, seconds: list[float]) -> None:
        self.counts["first_tokens", name] += len(seconds)
        self.counts["first_token_seconds", name] += sum(seconds)  # type: ignore[assignment]


def _places(digests: Int32s) -> Int32s:
    """Return two places in a filter for each digest, whose bits are random."""
    first, middle, last = digests.T
    low = _SEEN_BITS - _WORD_BITS
    high = middle >> (_WORD_BITS - low)
    return np.concatenate((first << low | middle & (1 << low) - 1, last << low | high))


def _set(bits: np.ndarray, digests: Int32s) -> None:
    places = _places(digests)
    np.bitwise_or.at(bits, places >> 3, (1 << (places & 7)).astype(np.uint8))


def _are_set(bits: np.ndarray, digests: Int32s) -> bool:
    """Return whether all digests were set; a few too many seem to be."""
    places = _places(digests)
    return bool((bits[places >> 3] >> (places & 7) & 1).all())
