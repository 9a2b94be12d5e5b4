"""vLLM's offloading manager over host memory and what lies below it."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import uuid4

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    ConfigInfoMapping,
    LoadStoreSpec,
    LookupResult,
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

from hybrid_blocks._core.offload import HostCache, RequestKeys
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.layout import Groups
from hybrid_blocks.offload.manager.host import ABSENT, Host, HostLoadStoreSpec
from hybrid_blocks.offload.manager.lookups import Lookups
from hybrid_blocks.offload.manager.metrics import Counts, HostInfo
from hybrid_blocks.offload.manager.progress import Progress
from hybrid_blocks.offload.manager.promotions import Promotions
from hybrid_blocks.offload.manager.request import RequestState, all_keys
from hybrid_blocks.offload.manager.write_back import WriteBack
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.rates import ComputeRate
from hybrid_blocks.vllm.log import logger


class HybridOffloadingManager(OffloadingManager):
    """Decides what lies in host memory and below it.

    Chunks below host memory are read only if the length from which a request resumes needs them.
    """

    def __init__(
        self,
        groups: Groups,
        num_bytes: int,
        *,
        below: TiersBelow | None = None,
        with_events: bool = False,
        info: HostInfo | None = None,
        computing: ComputeRate | None = None,
        reopen: Callable[[str], TiersBelow] | None = None,
    ) -> None:
        """Manage ``num_bytes`` of host memory for the chunks of ``groups``.

        ``reopen`` opens the tiers below again after a reset, for chunks of the epoch that it gets.
        Reads from ``below`` are weighed against ``computing``; without it all that can be is read.
        """
        self._info = info
        self._groups = groups.by_number()
        self._below = below or TiersBelow()
        self._host = Host(
            groups, num_bytes, with_events=with_events, is_written_back=any(self._below)
        )
        self._promotions = Promotions(self._host, self._below)
        self._computing = computing
        self._lookups = Lookups(groups, self._host, self._below, self._promotions, computing)
        self._write_back = WriteBack(self._host, self._below)
        # Counts resets; what was known of requests before one is void.
        self._generation = 0
        self._requests: dict[str, RequestState] = {}
        self._reopen = reopen
        self._had_tiers = False
        self._progress = Progress(self._host, self._below, self._promotions, self._write_back)

    @property
    def cache(self) -> HostCache:
        """The books of host memory."""
        return self._host.cache

    @property
    def counts(self) -> Counts:
        """The counts since the last report."""
        return self._host.counts

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Say whether a chunk can be loaded as part of what the request can restore."""
        if self._progress.is_void:
            return LookupResult.MISS
        state = self._state(req_context)
        if state.waiting:
            self._progress.take_for(state, key)
        return self._lookups.answer(key, state, req_context)

    def restorable(self, req_context: ReqContext, num_computed: int, limit: int) -> int | None:
        """Return the tokens from which a request goes on soonest, ``limit`` at most.

        The device has the first ``num_computed``. ``None`` asks the caller to come back, as chunks
        are on their way. One call answers for all keys that ``req_context`` names.
        """
        if self._progress.is_void:
            return num_computed
        state = self._state(req_context)
        if state.waiting:
            self._progress.take_for(state, OffloadKey(b""))
        return self._lookups.restorable(state, num_computed, limit, req_context)

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Say which tier a chunk came from."""
        return self._state(req_context).promoted.get(key, CacheHitSource.HOST)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin chunks that were just found, and say where they are."""
        keys = list(keys)
        offsets = self.cache.begin_load(keys)
        self.cache.touch(keys)
        state = self._state(req_context)
        self._promotions.release(state)
        tokens = [self._tokens(key, at, req_context) for at, key in enumerate(keys)]
        state.num_reached = max([state.num_reached, *tokens])
        self.counts.loaded_chunks += len(keys)
        return HostLoadStoreSpec(offsets)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Unpin chunks that were loaded."""
        del req_context
        self.cache.complete_load(list(keys))

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Note that a request resumed from these chunks."""
        del req_context
        self.cache.touch(list(keys))

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Take slots for the chunks that are not in host memory, and evict for them."""
        if self._progress.is_void:
            self.counts.stores_refused += 1
            return None
        state = self._state(req_context)
        keys = list(keys)
        if state.chain is None:
            state.chain = self.cache.open_request(state.keys_of(req_context))
        tokens = [self._tokens(key, at, req_context) for at, key in enumerate(keys)]
        self._note_computing(req_context.req_id, state, max(tokens, default=0))
        offset_of, evicted = self._host.begin_store(state.chain, keys, tokens)
        self._count_store(keys, offset_of or {})
        if offset_of is None:
            self.counts.stores_refused += 1
            return None
        stored = [key for key in keys if key in offset_of]
        return PrepareStoreOutput(
            keys_to_store=stored,
            store_spec=HostLoadStoreSpec([offset_of[key] for key in stored]),
            evicted_keys=evicted,
        )

    def _note_computing(self, req_id: str, state: RequestState, num_tokens: int) -> None:
        """Note what a step computes of a prompt: what is offered was not there before it."""
        # A chunk of an answer took many steps, though vLLM offers it in one.
        num_tokens = min(num_tokens, state.num_known)
        if self._computing is not None:
            self._computing.advance(req_id, num_tokens - state.num_reached)
        state.num_reached = max(state.num_reached, num_tokens)

    def _count_store(self, keys: list[OffloadKey], stored: Mapping[bytes, int]) -> None:
        """Count the chunks that a store asked room for, and got or did not get."""
        others = [key for key in keys if key not in stored]
        num_refused = self.cache.presences(others).count(ABSENT)
        if stored or num_refused:
            self.counts.store_sizes.append(len(stored) + num_refused)

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
        num_stored = self._host.complete_store(list(keys), success=success)
        if success:
            self.counts.stored_chunks += num_stored
        self._write_back.begin()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """End a request: its session pauses, so what it left goes to the tiers below."""
        state = self._requests.pop(req_context.req_id, None)
        if state is None or state.generation != self._generation:
            return
        self._promotions.forget(state)
        keys, tokens = all_keys(req_context)
        # The pause until the next turn begins now, wherever the request found what it went on from.
        self.cache.touch(keys, request=state.chain)
        if state.chain is not None:
            self.cache.close_request(state.chain)
        self._write_back.add(keys, tokens)

    # The engine's life

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Begin to know a request."""
        self._state(req_context)
        return RequestOffloadingContext()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Take what ended on the tiers' threads."""
        for req_id in (*context.new_req_ids, *context.preempted_req_ids):
            if (state := self._requests.get(req_id)) is not None:
                # A running request has loaded its chunks; its next look-up finds it longer.
                self._promotions.release(state)
                state.limit = None
                self.counts.passed_by_tokens += state.num_passed_by
                state.num_passed_by = 0
        if self._computing is not None:
            self._computing.end_step(time.monotonic(), self._requests)
        self._lookups.end_step()
        self._progress.end_step()

    def has_pending_work(self) -> bool:
        """Whether transfers with tiers below are to be taken or begun."""
        return self._progress.is_pending

    def reset_cache(self) -> None:
        """Forget everything, and begin a new epoch.

        A reset may follow new weights. So chunks that lie below host memory are not read any more
        in this process, and those stored from now on by no other one.
        """
        had_tiers = self._had_tiers = self._had_tiers or any(self._below)
        self._progress.abandon()
        self._requests.clear()
        self._generation += 1
        if not had_tiers or self._reopen is None:
            return
        try:
            opened = self._reopen(uuid4().hex)
        except (OSError, HybridBlocksError) as error:
            logger.warning("Only host memory is used until the next reset: %s", error)
            return
        self._below.disk, self._below.objects = opened.disk, opened.objects
        logger.info("The cache was reset: a new epoch begins below host memory.")

    def shutdown(self) -> None:
        """Write what is under way and finish it, as far as the tiers go on."""
        self._progress.finish()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return what was stored and evicted since this was last asked."""
        return self._host.take_events()

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return counts and gauges since this was last asked."""
        return self.counts.take(self.cache, self._host.num_bytes, self._below, self._computing)

    def config_info(self) -> Sequence[ConfigInfoMapping]:
        """Return the labels of vLLM's info metric."""
        return [{} if self._info is None else self._info.as_config_info()]

    def _state(self, context: ReqContext) -> RequestState:
        state = self._requests.get(context.req_id)
        if state is None:
            state = RequestState(RequestKeys(self.cache), generation=self._generation)
            self._requests[context.req_id] = state
        return state
