"""vLLM's offloading manager over the host cache and the disk."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_group_idx,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hybrid_blocks._core.offload import HostCache
from hybrid_blocks.offload.disk_queue import Chunks, DiskQueue
from hybrid_blocks.offload.groups import Groups
from hybrid_blocks.offload.metrics import Counts
from hybrid_blocks.offload.promotion import Promotion
from hybrid_blocks.offload.request import RequestState, all_keys
from hybrid_blocks.offload.transfer import HostLoadStoreSpec

logger = init_logger("vllm.hybrid_blocks")

_RESULTS = (LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.HIT)
# Host memory that may be pinned for writes to the disk at a time.
_WRITE_SHARE = 4


class HybridOffloadingManager(OffloadingManager):
    """Decides what lies in host memory and on disk.

    A request is looked up in one call of the core when vLLM asks for its first key: the longest
    length at which every group has what it needs, states first. The answers for single keys follow
    from it. Chunks on disk are read only where that length needs them.
    """

    def __init__(
        self,
        groups: Groups,
        num_bytes: int,
        *,
        disk: DiskQueue | None = None,
        with_events: bool = False,
    ) -> None:
        """Manage ``num_bytes`` of host memory for the chunks of ``groups``."""
        numbered = groups.by_number()
        self._groups = numbered
        self._num_bytes = num_bytes
        self._cache = HostCache(
            num_bytes,
            hash_block_size=groups.tokens_per_hash,
            chunk_tokens=[group.tokens if group else 0 for group in numbered],
            chunk_bytes=[groups.chunk_bytes(group) if group else 0 for group in numbered],
            windows=[group.window if group else None for group in numbered],
        )
        self._disk = disk
        # What ended requests left in host memory and the disk does not have yet.
        self._to_write: deque[tuple[list[OffloadKey], list[int]]] = deque()
        self._written_bytes = 0
        # Counts changes of the cache; a look-up holds until the next one.
        self._version = 0
        # Counts resets; what was known of requests before one is void.
        self._generation = 0
        self._requests: dict[str, RequestState] = {}
        self._events: list[OffloadingEvent] | None = [] if with_events else None
        self.counts = Counts()

    @property
    def cache(self) -> HostCache:
        """The books of host memory."""
        return self._cache

    # Look-ups

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Say whether a chunk can be loaded as part of what the request can restore."""
        state = self._state(req_context)
        if state.promotion.waiting:
            self._take_finished()
        if state.promotion.waiting:
            return LookupResult.RETRY
        if state.version != self._version:
            self._look_up(state, key, req_context)
            if state.promotion.waiting:
                return LookupResult.RETRY
        group = self._groups[get_offload_group_idx(key)]
        position = req_context.get_offload_key_position(key)
        if group is None:
            return LookupResult.MISS
        # A drafter's group is asked for one chunk more than is loaded.
        if position is not None and position > state.num_tokens + group.tokens:
            return LookupResult.MISS
        return _RESULTS[self._cache.presence(key)]

    def _look_up(self, state: RequestState, first: OffloadKey, context: ReqContext) -> None:
        keys, tokens = all_keys(context)
        if not keys:  # a caller without positions: each key speaks for itself
            state.num_tokens = 1 << 62
            return
        group = self._groups[get_offload_group_idx(first)]
        position = context.get_offload_key_position(first)
        # Attention is asked from the first chunk that the device lacks.
        is_prefix = group is not None and group.window is None and position is not None
        num_computed = position - group.tokens if is_prefix else 0  # type: ignore[operator, union-attr]
        disk = self._disk.disk if self._disk and self._may_read(state, context) else None
        found = self._cache.lookup(keys, tokens, num_computed=num_computed, disk=disk)
        state.num_tokens = found.num_tokens
        state.version = self._version
        self.counts.lookups += 1
        if found.on_disk:
            self._promote(state, found.on_host, found.on_disk, found.on_disk_tokens)

    @staticmethod
    def _may_read(state: RequestState, context: ReqContext) -> bool:
        return not state.is_disk_off and context.load_tier_filter.allows(
            Medium.STORAGE, Locality.LOCAL
        )

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Say which tier a chunk came from."""
        promoted = self._state(req_context).promoted
        return CacheHitSource.DISK if key in promoted else CacheHitSource.HOST

    # From disk to host

    def _promote(
        self,
        state: RequestState,
        on_host: list[bytes],
        on_disk: list[bytes],
        tokens: list[int],
    ) -> None:
        assert self._disk is not None
        held = [key for key in on_host if self._cache.presence(key) == len(_RESULTS) - 1]
        self._cache.begin_load(held)
        state.promotion = Promotion(held=held)
        chain = self._cache.open_request([], [])
        begun = self._cache.begin_store(chain, on_disk, tokens)
        self._cache.close_request(chain)
        keys, offsets = begun if begun is not None else ([], np.empty(0, np.int64))
        self._note_evicted()
        if len(keys) < len(on_disk):
            # Some have no room, so the length cannot be restored: nothing is read in vain.
            self._cache.complete_store(keys, success=False)
            self._drop(state)
            state.is_disk_off = True
            state.version = -1
            self.counts.promotions_refused += 1
            return
        tokens_of = dict(zip(on_disk, tokens, strict=True))
        state.promotion.waiting = set(keys)
        self._disk.read(Chunks(keys, [tokens_of[key] for key in keys], offsets.tolist()))

    def _drop(self, state: RequestState) -> None:
        """Let go of what a request kept in place."""
        self._cache.complete_load(state.promotion.held)
        state.promotion = Promotion(waiting=state.promotion.waiting)

    def _take_finished(self, *, wait: bool = False) -> None:
        if self._disk is None:
            return
        for done in self._disk.finished(wait=wait):
            if done.is_read:
                self._end_read(done.chunks.keys, done.ok)
            else:
                self._cache.complete_load(done.chunks.keys)
                self._written_bytes -= sum(map(self._disk.size, done.chunks.keys))
        for message in self._disk.disk.take_warnings():
            logger.warning("%s", message)

    def _end_read(self, keys: Sequence[bytes], ok: list[bool]) -> None:
        assert self._disk is not None
        good = [key for key, is_ok in zip(keys, ok, strict=True) if is_ok]
        bad = [key for key, is_ok in zip(keys, ok, strict=True) if not is_ok]
        self._cache.complete_store(good, success=True)
        self._cache.complete_store(bad, success=False)
        self.counts.promoted_bytes += sum(map(self._disk.size, good))
        self._version += 1
        self._note_stored([OffloadKey(key) for key in good])
        for state in self._requests.values():
            waiting = state.promotion.waiting
            if not waiting.isdisjoint(keys):
                state.promotion.waiting = waiting.difference(keys)
                mine = [key for key in good if key in waiting]
                self._cache.begin_load(mine)
                state.promotion.held.extend(mine)
                state.promoted.update(OffloadKey(key) for key in mine)
                state.is_disk_off |= bool(bad)

    # Loads

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin chunks that were just found, and say where they are."""
        keys = list(keys)
        offsets = self._cache.begin_load(keys)
        self._cache.touch(keys)
        self._drop(self._state(req_context))
        self.counts.loaded_chunks += len(keys)
        return HostLoadStoreSpec(offsets)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Unpin chunks that were loaded."""
        del req_context
        self._cache.complete_load(list(keys))

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Note that a request went on from these chunks."""
        del req_context
        self._cache.touch(list(keys))

    # Stores

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Take slots for the chunks that are not in host memory, and evict for them."""
        state = self._state(req_context)
        keys = list(keys)
        if state.chain is None:
            state.chain = self._cache.open_request(*all_keys(req_context))
        tokens = [self._tokens(key, at, req_context) for at, key in enumerate(keys)]
        begun = self._cache.begin_store(state.chain, keys, tokens)
        evicted = self._note_evicted()
        if begun is None:
            self.counts.stores_refused += 1
            return None
        self._version += 1
        offset_of = dict(zip(*begun, strict=True))
        stored = [key for key in keys if key in offset_of]
        return PrepareStoreOutput(
            keys_to_store=stored,
            store_spec=HostLoadStoreSpec([offset_of[key] for key in stored]),
            evicted_keys=evicted,
        )

    def _tokens(self, key: OffloadKey, at: int, context: ReqContext) -> int:
        position = context.get_offload_key_position(key)
        if position is not None:
            return position
        group = self._groups[get_offload_group_idx(key)]
        return (at + 1) * (group.tokens if group else 1)

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """Let chunks that were copied be found."""
        del req_context
        keys = list(keys)
        num_stored = self._cache.complete_store(keys, success)
        self._version += 1
        if success:
            self.counts.stored_chunks += num_stored
            self._note_stored(keys)
        self._write_next()

    # From host to disk

    def on_request_finished(self, req_context: ReqContext) -> None:
        """End a request: its session pauses, so what it left goes to the disk."""
        state = self._requests.pop(req_context.req_id, None)
        if state is None or state.generation != self._generation:
            return
        self._drop(state)
        if state.chain is not None:
            self._cache.close_request(state.chain)
        if self._disk is not None:
            self._to_write.append(all_keys(req_context))
            self._write_next()

    def _write_next(self) -> None:
        """Begin writes, oldest first, as far as host memory may be pinned for them."""
        if self._disk is None:
            return
        while self._to_write and self._written_bytes * _WRITE_SHARE < self._num_bytes:
            keys, tokens = self._to_write[0]
            presences = [self._cache.presence(key) for key in keys]
            if presences.count(1):  # still being copied from the device
                return
            self._to_write.popleft()
            there = self._disk.disk.contains(keys)
            wanted = [
                (key, count)
                for key, count, presence, is_there in zip(
                    keys, tokens, presences, there, strict=True
                )
                if presence and not is_there
            ]
            if not wanted or self._disk.disk.is_paused:
                continue
            names = [key for key, _ in wanted]
            offsets = self._cache.begin_load(names).tolist()
            self._written_bytes += sum(map(self._disk.size, names))
            self._disk.write(Chunks(names, [count for _, count in wanted], offsets))

    # The engine's life

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Begin to know a request."""
        self._state(req_context)
        return RequestOffloadingContext()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Take what ended on the disk's threads."""
        del context
        self._take_finished()
        self._write_next()

    def has_pending_work(self) -> bool:
        """Whether transfers with the disk are to be taken or begun."""
        return self._disk is not None and bool(self._disk.num_under_way or self._to_write)

    def reset_cache(self) -> None:
        """Forget everything.

        A reset may follow new weights. So the disk is not used any more until a restart.
        """
        self._take_finished(wait=True)
        if self._disk is not None:
            logger.warning(
                "The cache was reset, so chunks on disk may belong to other weights; the disk is "
                "not used until the next start."
            )
            self._disk.close()
            self._disk = None
        self._to_write.clear()
        self._cache.reset()
        self._requests.clear()
        self._generation += 1
        self._version += 1

    def shutdown(self) -> None:
        """Write what is under way and seal it."""
        if self._disk is not None:
            self._take_finished(wait=True)
            self._write_next()
            self._take_finished(wait=True)
            self._disk.close()
            self._disk = None

    # Reports

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return what was stored and evicted since this was last asked."""
        events, self._events = self._events, self._events and []
        return events or []

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return counts and gauges since this was last asked."""
        disk = self._disk.disk if self._disk else None
        return self.counts.take(self._cache, disk)

    def _note_stored(self, keys: list[OffloadKey]) -> None:
        if keys and self._events is not None:
            self._events.append(OffloadingEvent(keys=keys, medium=Medium.CPU, removed=False))

    def _note_evicted(self) -> list[OffloadKey]:
        keys = [OffloadKey(key) for key in self._cache.take_evicted()]
        self.counts.evicted_chunks += len(keys)
        if keys and self._events is not None:
            self._events.append(OffloadingEvent(keys=keys, medium=Medium.CPU, removed=True))
        return keys

    def _state(self, context: ReqContext) -> RequestState:
        state = self._requests.get(context.req_id)
        if state is None:
            state = RequestState(generation=self._generation)
            self._requests[context.req_id] = state
        return state
