"""Chunks on their way from the tiers below to host memory."""

import time
from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_offload.base import OffloadKey, ReqContext

from hybrid_blocks._core.offload import Lookup
from hybrid_blocks.offload.manager.host import READY, Host
from hybrid_blocks.offload.manager.request import RequestState
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.queue import Chunks, TierQueue

# Host memory that several requests may have read and pinned before they load it, as a divisor.
_SHARE = 2
# Seconds that a request waits for room; one that is passed by again and again must go on as well.
_PATIENCE = 10.0


class Promotions:
    """Reads for requests. Their chunks stay in host memory until the requests load them."""

    def __init__(self, host: Host, below: TiersBelow) -> None:
        self._host = host
        self._below = below
        self._waiting: list[RequestState] = []
        # Keys of chunks whose reads do not end.
        self._given_up: set[bytes] = set()
        # Bytes of the chunks being read and held, summed over requests.
        self._bytes = 0

    def begin(self, state: RequestState, found: Lookup, context: ReqContext) -> None:
        """Read what a look-up chose, or nothing where host memory has no room for all of it."""
        self.release(state)
        host = self._host
        here = zip(found.on_host, host.cache.presences(found.on_host), strict=True)
        held = [key for key, presence in here if presence == READY]
        reads: list[tuple[TierQueue[Any] | None, list[bytes], list[int]]] = [
            (self._below.disk, found.on_disk, found.on_disk_tokens),
            (self._below.objects, found.in_objects, found.in_objects_tokens),
        ]
        keys = [key for _, keys, _ in reads for key in keys]
        tokens = [count for _, _, tokens in reads for count in tokens]
        size = host.size(held) + host.size(keys)
        offset_of = None
        if self._may_fit(size):
            # With all keys of the request, so that what is read owns what leads to it.
            chain = host.cache.open_request(state.keys_of(context))
            offset_of = self._take(chain, held, keys, tokens)
            if offset_of is None:
                host.cache.close_request(chain)
            else:
                # Until the request ends: before it stores, nothing else says that it goes on here.
                state.promotions.append(chain)
        if offset_of is None:
            self._refuse(state)
            return
        state.refused_since = None
        state.held = held
        state.waiting = set(keys)
        state.promotion_bytes = size
        self._bytes += size
        self._waiting.append(state)
        for tier, names, counts in reads:
            if tier is not None and names:
                tier.read(Chunks(names, counts, [offset_of[key] for key in names]))

    def _may_fit(self, size: int) -> bool:
        """Whether to evict for a request that would have this many bytes read and pinned."""
        beside = self._bytes and self._bytes + size
        in_all = self._host.cache.pinned_bytes + size
        return max(beside * _SHARE, in_all) <= self._host.num_bytes

    def _take(
        self, chain: int, held: list[bytes], keys: list[bytes], tokens: list[int]
    ) -> dict[bytes, int] | None:
        """Pin what is here and take slots for the rest, or nothing if not all of it has room."""
        host = self._host
        host.cache.begin_load(held)
        begun, _ = host.begin_store(chain, keys, tokens)
        if begun is None or len(begun) < len(keys):
            host.complete_store(list(begun or ()), success=False)
            host.cache.complete_load(held)
            return None
        return begun

    def _refuse(self, state: RequestState) -> None:
        """Hold a request back until there may be room, but not for ever."""
        # A refused request pins nothing meanwhile, so no two requests wait for each other.
        state.version = -1
        now = time.monotonic()
        if state.refused_since is None:
            state.refused_since = now
            self._host.counts.promotions_refused += 1
        state.refused_at = self._host.cache.num_releases
        if not self._host.is_busy or now - state.refused_since >= _PATIENCE:
            state.is_below_off = True
            state.refused_since = None

    def is_held_back(self, state: RequestState) -> bool:
        """Whether a request found no room, and nothing has made any since."""
        if state.refused_since is None or state.refused_at != self._host.cache.num_releases:
            return False
        return time.monotonic() - state.refused_since < _PATIENCE

    def end(self, tier: TierQueue[Any], keys: Sequence[bytes], ok: list[bool]) -> None:
        """End a read. Chunks that arrived are held for the requests that wait for them."""
        self._given_up.difference_update(keys)
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
            if not state.held:
                self.release(state)
        self._waiting = [state for state in self._waiting if state.waiting]

    def give_up(self, tier: TierQueue[Any]) -> None:
        """Let requests go on without what a tier does not bring; its slots stay taken."""
        keys = tier.keys_being_read()
        self._given_up |= keys
        for state in self._waiting:
            if not state.waiting.isdisjoint(keys):
                state.waiting = set()
                state.is_below_off = True
                state.version = -1
                self.release(state)
        self._waiting = [state for state in self._waiting if state.waiting]

    def is_given_up(self, key: bytes) -> bool:
        """Whether a chunk is on its way from a tier that stands still."""
        return key in self._given_up

    def release(self, state: RequestState) -> None:
        """Let go of what a request kept in place."""
        if state.held:
            self._host.cache.complete_load(state.held)
        state.held = []
        if not state.waiting:
            self._bytes -= state.promotion_bytes
            state.promotion_bytes = 0

    def forget(self, state: RequestState) -> None:
        """End a request; its reads continue, and no request waits for them."""
        state.waiting = set()
        self.release(state)
        for chain in state.promotions:
            self._host.cache.close_request(chain)
        self._waiting = [other for other in self._waiting if other is not state]

    def clear(self) -> None:
        """Forget all requests; what they held is void."""
        self._waiting = []
        self._given_up.clear()
        self._bytes = 0
