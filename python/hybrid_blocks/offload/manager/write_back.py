"""Chunks on their way from host memory to the tiers below."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.offload.manager.host import PENDING, READY, Host
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.queue import Chunks, TierQueue

# Host memory that may be pinned for writes at a time, as a divisor.
_SHARE: Final = 4
# Part of that which must be free before a request's next part is written, as a divisor.
_LEAST_SHARE: Final = 4
# Keys that may wait to be written; the oldest requests' are let go.
_MOST_KEYS: Final = 1 << 18


@dataclass
class _Left:
    """Chunks that a request left for a tier, and a chunk that it waits for."""

    tier: TierQueue[Any]
    keys: Sequence[bytes]
    tokens: Sequence[int]
    pending: bytes | None = None


class WriteBack:
    """Chunks of ended requests in host memory that a tier below does not have yet.

    At most a quarter of host memory is pinned for writes. A request with more is written in parts.
    """

    def __init__(self, host: Host, below: TiersBelow) -> None:
        """Write from ``host`` to all tiers of ``below``."""
        self._host = host
        self._below = below
        self._left: deque[_Left] = deque()
        self._num_keys = 0
        self._pinned_bytes = 0
        # By tier, so that what several requests share is written once.
        self._under_way: dict[int, set[bytes]] = {}

    def __bool__(self) -> bool:
        """Say whether anything waits to be written."""
        return bool(self._left)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of chunks that are being written."""
        return self._pinned_bytes

    def add(self, keys: Sequence[bytes], tokens: Sequence[int]) -> None:
        """Note what an ended request has left, with the tokens that each key stands for."""
        for tier in self._below:
            self._push(_Left(tier, keys, tokens))
        self.begin()

    def _push(self, left: _Left) -> None:
        self._left.append(left)
        self._num_keys += len(left.keys)
        while self._num_keys > _MOST_KEYS and len(self._left) > 1:
            self._num_keys -= len(self._left.popleft().keys)

    def begin(self) -> None:
        """Begin writes, oldest first, as far as host memory may be pinned for them."""
        waiting = []
        while self._left and self._has_room():
            left = self._left.popleft()
            # One look for a request that waits, whatever its length.
            if left.pending is not None and self._host.cache.presence(left.pending) == PENDING:
                waiting.append(left)
                continue
            self._num_keys -= len(left.keys)
            rest = self._write(left)
            if rest is not None:
                self._num_keys += len(rest.keys)
                waiting.append(rest)
        self._left.extendleft(reversed(waiting))

    def _has_room(self) -> bool:
        most = self._host.num_bytes // _SHARE
        return self._pinned_bytes == 0 or most - self._pinned_bytes >= most // _LEAST_SHARE

    def _write(self, left: _Left) -> _Left | None:
        """Begin to write what has room; return what has not, or waits for a copy."""
        tier = left.tier
        if tier.store.is_paused or tier.is_stuck:
            return None
        presences = self._host.cache.presences(left.keys)
        if (at := presences.rfind(PENDING)) >= 0:  # still being copied from the device
            return _Left(tier, left.keys, left.tokens, left.keys[at])
        here = [
            (key, count)
            for key, count, presence in zip(left.keys, left.tokens, presences, strict=True)
            if presence == READY
        ]
        there = tier.store.contains([key for key, _ in here])
        if isinstance(tier.store, DiskStore):  # objects are not evicted
            old = zip(here, there, strict=True)
            tier.store.touch([key for (key, _), is_there in old if is_there])
        under_way = self._under_way.setdefault(id(tier), set())
        wanted = [
            chunk
            for chunk, is_there in zip(here, there, strict=True)
            if not is_there and chunk[0] not in under_way
        ]
        end = self._num_fitting(tier, [key for key, _ in wanted])
        if end:
            keys, tokens = zip(*wanted[:end], strict=True)
            offsets = self._host.cache.begin_load(keys).tolist()
            self._pinned_bytes += sum(map(tier.size, keys))
            under_way.update(keys)
            tier.write(Chunks(keys, list(tokens), offsets))
        if end == len(wanted):
            return None
        keys, tokens = zip(*wanted[end:], strict=True)
        return _Left(tier, keys, tokens)

    def _num_fitting(self, tier: TierQueue[Any], keys: Sequence[bytes]) -> int:
        """How many chunks may be pinned beside those that are; one alone always may."""
        room = self._host.num_bytes // _SHARE - self._pinned_bytes
        for at, key in enumerate(keys):
            room -= tier.size(key)
            if room < 0:
                return max(at, int(self._pinned_bytes == 0))
        return len(keys)

    def end(self, tier: TierQueue[Any], chunks: Chunks) -> None:
        """End a write."""
        self._host.cache.complete_load(chunks.keys)
        self._under_way.get(id(tier), set()).difference_update(chunks.keys)
        self._pinned_bytes -= sum(map(tier.size, chunks.keys))

    def clear(self) -> None:
        """Write nothing more of what was left."""
        self._left.clear()
        self._num_keys = 0
