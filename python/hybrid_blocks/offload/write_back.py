"""Chunks on their way from host memory to the tiers below."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.offload.host import ABSENT, PENDING, Host
from hybrid_blocks.offload.tier_queue import Chunks, TierQueue
from hybrid_blocks.offload.tiers_below import TiersBelow

# Host memory that may be pinned for writes at a time, as a divisor.
_SHARE = 4


class WriteBack:
    """What ended requests left in host memory and a tier below does not have yet."""

    def __init__(self, host: Host, below: TiersBelow) -> None:
        """Write from ``host`` to all tiers of ``below``."""
        self._host = host
        self._below = below
        self._left: deque[tuple[Sequence[bytes], list[int]]] = deque()
        self._pinned_bytes = 0

    def __bool__(self) -> bool:
        """Say whether anything waits to be written."""
        return bool(self._left)

    def add(self, keys: Sequence[bytes], tokens: list[int]) -> None:
        """Note what an ended request has left, with the tokens that each key stands for."""
        if any(self._below):
            self._left.append((keys, tokens))
            self.begin()

    def begin(self) -> None:
        """Begin writes, oldest first, as far as host memory may be pinned for them."""
        waiting = []
        while self._left and self._pinned_bytes * _SHARE < self._host.num_bytes:
            keys, tokens = self._left.popleft()
            presences = [self._host.cache.presence(key) for key in keys]
            if PENDING in presences:  # still being copied from the device
                waiting.append((keys, tokens))
                continue
            here = [
                (key, count)
                for key, count, presence in zip(keys, tokens, presences, strict=True)
                if presence != ABSENT
            ]
            for tier in self._below:
                self._write(tier, here)
        self._left.extendleft(reversed(waiting))

    def _write(self, tier: TierQueue[Any], chunks: list[tuple[bytes, int]]) -> None:
        if tier.store.is_paused:
            return
        there = tier.store.contains([key for key, _ in chunks])
        wanted = [chunk for chunk, is_there in zip(chunks, there, strict=True) if not is_there]
        if isinstance(tier.store, DiskStore):  # objects are not evicted
            old = zip(chunks, there, strict=True)
            tier.store.touch([key for (key, _), is_there in old if is_there])
        if not wanted:
            return
        keys = [key for key, _ in wanted]
        offsets = self._host.pin(keys).tolist()
        self._pinned_bytes += sum(map(tier.size, keys))
        tier.write(Chunks(keys, [count for _, count in wanted], offsets))

    def end(self, tier: TierQueue[Any], chunks: Chunks) -> None:
        """End a write."""
        self._host.unpin(chunks.keys)
        self._pinned_bytes -= sum(map(tier.size, chunks.keys))

    def clear(self) -> None:
        """Write nothing more of what was left."""
        self._left.clear()
