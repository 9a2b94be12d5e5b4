"""Chunks on their way from the tiers below to host memory."""

from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_offload.base import OffloadKey

from hybrid_blocks._core.offload import Lookup
from hybrid_blocks.offload.host import READY, Host
from hybrid_blocks.offload.request import RequestState
from hybrid_blocks.offload.tier_queue import Chunks, TierQueue
from hybrid_blocks.offload.tiers_below import TiersBelow


class Promotions:
    """Reads for requests. What one waits for stays in host memory until it is loaded."""

    def __init__(self, host: Host, below: TiersBelow) -> None:
        """Read from ``below`` to ``host``."""
        self._host = host
        self._below = below
        self._waiting: list[RequestState] = []

    def begin(self, state: RequestState, found: Lookup) -> None:
        """Read what a look-up chose, or nothing where host memory has no room for all of it."""
        cache = self._host.cache
        held = [key for key in found.on_host if cache.presence(key) == READY]
        cache.begin_load(held)
        # After the new pins, as both may be of the same chunks.
        self.release(state)
        state.held = held
        reads: list[tuple[TierQueue[Any] | None, list[bytes], list[int]]] = [
            (self._below.disk, found.on_disk, found.on_disk_tokens),
            (self._below.objects, found.in_objects, found.in_objects_tokens),
        ]
        keys = [key for _, keys, _ in reads for key in keys]
        tokens = [count for _, _, tokens in reads for count in tokens]
        chain = cache.open_request([], [])
        begun, _ = self._host.begin_store(chain, keys, tokens)
        # Open until the request ends: before it stores, nothing else says that it goes on here.
        state.promotions.append(chain)
        offset_of = begun or {}
        if len(offset_of) < len(keys):
            # Some have no room, so the length cannot be restored: nothing is read in vain.
            self._host.complete_store(list(offset_of), success=False)
            self.release(state)
            state.is_below_off = True
            state.version = -1
            self._host.counts.promotions_refused += 1
            return
        state.waiting = set(keys)
        self._waiting.append(state)
        for tier, names, counts in reads:
            if tier is not None and names:
                tier.read(Chunks(names, counts, [offset_of[key] for key in names]))

    def end(self, tier: TierQueue[Any], keys: Sequence[bytes], ok: list[bool]) -> None:
        """End a read. What arrived is held for who waits for it."""
        good = [key for key, is_ok in zip(keys, ok, strict=True) if is_ok]
        bad = [key for key, is_ok in zip(keys, ok, strict=True) if not is_ok]
        self._host.complete_store(good, success=True)
        self._host.complete_store(bad, success=False)
        self._host.counts.promoted_bytes += sum(map(tier.size, good))
        for state in self._waiting:
            mine = [key for key in good if key in state.waiting]
            state.is_below_off |= not state.waiting.isdisjoint(bad)
            state.waiting = state.waiting.difference(keys)
            self._host.cache.begin_load(mine)
            state.held.extend(mine)
            state.promoted.update((OffloadKey(key), tier.source) for key in mine)
        self._waiting = [state for state in self._waiting if state.waiting]

    def release(self, state: RequestState) -> None:
        """Let go of what a request kept in place."""
        self._host.cache.complete_load(state.held)
        state.held = []

    def forget(self, state: RequestState) -> None:
        """End a request; reads for it go on, and nobody waits for them."""
        self.release(state)
        for chain in state.promotions:
            self._host.cache.close_request(chain)
        self._waiting = [other for other in self._waiting if other is not state]

    def clear(self) -> None:
        """Forget all requests; what they held is void."""
        self._waiting = []
