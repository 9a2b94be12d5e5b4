"""Answers to the scheduler's questions for single keys, from one plan for all of a request."""

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, get_offload_group_idx

from hybrid_blocks._core.offload import Lookup
from hybrid_blocks.offload.layout import Groups
from hybrid_blocks.offload.manager.host import ABSENT, PENDING, Host
from hybrid_blocks.offload.manager.promotions import Promotions
from hybrid_blocks.offload.manager.request import RequestState
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.rates import ComputeRate

_RESULTS = (LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.HIT)


class Lookups:
    """Look-ups of the prefixes that requests can restore.

    A plan is a length at which every group has all that it needs. Of these lengths it is the one
    from which the request resumes soonest, by measured rates, or else the longest. The answers for
    single keys follow from it. vLLM asks for attention from the first chunk that the device lacks,
    then for windows and states from the last that it can load.
    """

    def __init__(
        self,
        groups: Groups,
        host: Host,
        below: TiersBelow,
        promotions: Promotions,
        computing: ComputeRate | None,
    ) -> None:
        """Look into ``host`` and ``below``, and let ``promotions`` read what a plan needs.

        Reads are weighed against ``computing``; without it the longest length is read.
        """
        self._groups = groups.by_number()
        self._host = host
        self._below = below
        self._promotions = promotions
        self._computing = computing
        self._num_steps = 0

    def end_step(self) -> None:
        """Note that the scheduler's questions begin again."""
        self._num_steps += 1

    def answer(self, key: OffloadKey, state: RequestState, context: ReqContext) -> LookupResult:
        """Say whether a chunk can be loaded as part of what the request can restore."""
        if state.waiting or self._promotions.is_held_back(state):
            return self._defer(key, state, context)
        group = self._groups[get_offload_group_idx(key)]
        if group is None:
            return LookupResult.MISS
        position = context.get_offload_key_position(key)
        if position is None:  # a caller without positions: each key speaks for itself
            return _RESULTS[self._host.cache.presence(key)]
        num_computed = state.num_computed
        if group.window is None:
            # The device's chunks end where this one begins, also where vLLM asks for a part of it.
            num_computed = (position - 1) // group.tokens * group.tokens
        is_stale = state.version != self._host.cache.version or num_computed < state.num_computed
        if is_stale and self._plan(state, num_computed, context):
            return self._defer(key, state, context)
        # For a drafter's group, vLLM looks up one chunk more than it loads.
        is_within = position <= state.num_tokens + group.tokens
        presence = self._host.cache.presence(key) if is_within else ABSENT
        # vLLM can load no more than a state or window here, or it had found the end of the plan.
        is_passed_by = presence == ABSENT and group.window is not None
        is_passed_by &= position <= state.next_end
        if is_passed_by and self._plan_below(state, position, context):
            return self._defer(key, state, context)
        is_given_up = presence == PENDING and self._promotions.is_given_up(key)
        return LookupResult.MISS if is_given_up else _RESULTS[presence]

    def restorable(
        self, state: RequestState, num_computed: int, limit: int, context: ReqContext
    ) -> int | None:
        """Return the length to restore; ``None`` while chunks of it are on their way."""
        if state.waiting or self._promotions.is_held_back(state):
            return None
        state.num_computed = state.num_reached = num_computed
        found = self._find(state, limit, context)
        state.num_tokens = max(found.num_tokens, num_computed)
        state.num_passed_by = found.num_passed_by
        if self._read(state, found, context):
            return None
        if found.is_pending:
            # Requests do not wait for reads from a tier that stands still.
            is_given_up = any(map(self._promotions.is_given_up, found.on_host))
            return num_computed if is_given_up else None
        return state.num_tokens

    def _defer(self, key: OffloadKey, state: RequestState, context: ReqContext) -> LookupResult:
        """Put a question off, and end the scan that it belongs to.

        vLLM scans on after ``RETRY``. A scan for a prefix ends at a miss. A scan for the last
        window ends at a full window of chunks on their way. Either way vLLM asks again later.
        """
        number = get_offload_group_idx(key)
        group = self._groups[number]
        position = context.get_offload_key_position(key)
        if group is None or position is None:
            return LookupResult.RETRY
        before = state.deferred.get(number)
        state.deferred[number] = (self._num_steps, position)
        if group.window is not None:  # from the end on
            is_next = before is not None and before[0] == self._num_steps and position < before[1]
            return LookupResult.HIT_PENDING if is_next else LookupResult.RETRY
        is_next = before == (self._num_steps, position - group.tokens)
        return LookupResult.MISS if is_next else LookupResult.RETRY

    def _plan(self, state: RequestState, num_computed: int, context: ReqContext) -> bool:
        """Look up all that can be loaded; say whether to ask again, as chunks are to be read."""
        if num_computed != state.num_computed:
            state.limit = None
        state.num_computed = num_computed
        found = self._find(state, state.limit, context)
        state.num_tokens = max(found.num_tokens, num_computed)
        state.num_passed_by = found.num_passed_by
        state.num_reached = num_computed
        state.next_end = found.num_tokens
        state.version = self._host.cache.version
        return self._read(state, found, context)

    def _plan_below(self, state: RequestState, limit: int, context: ReqContext) -> bool:
        """Look up what can be loaded up to ``limit``, where the plan goes further."""
        found = self._find(state, limit, context)
        state.next_end = found.num_tokens
        if not _has_reads(found):  # single keys say as much
            return False
        state.limit = limit
        state.num_tokens = found.num_tokens
        return self._read(state, found, context)

    def _find(self, state: RequestState, limit: int | None, context: ReqContext) -> Lookup:
        self._host.counts.lookups += 1
        below = TiersBelow() if state.is_below_off else self._below.for_load(context)
        keys = state.keys_of(context)
        state.num_known = keys.num_tokens
        seconds = self._computing.seconds_per_token if self._computing else None
        return below.look_up(
            self._host.cache,
            keys,
            num_computed=state.num_computed,
            limit=limit,
            token_seconds=seconds,
        )

    def _read(self, state: RequestState, found: Lookup, context: ReqContext) -> bool:
        if not _has_reads(found):
            return False
        # If there was no room too: what was said to be there may have been evicted for it.
        self._promotions.begin(state, found, context)
        return True


def _has_reads(found: Lookup) -> bool:
    return bool(found.on_disk or found.in_objects)
