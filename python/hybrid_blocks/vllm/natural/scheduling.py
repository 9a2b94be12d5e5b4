"""Methods of vLLM's scheduler over slabs: chunks, sessions, loads of connectors, shown capacity."""

from itertools import islice
from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from hybrid_blocks.arithmetic import ceil_div, needs_more, prompts_outweigh, tokens_of_short
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager
from hybrid_blocks.vllm.specs import is_state

_vllm_split = Scheduler._mamba_block_aligned_split
_vllm_handle_blocked = Scheduler._handle_blocked_waiting_request
_vllm_handle_stopped_request = Scheduler._handle_stopped_request
_vllm_update_session = Scheduler._update_request_as_session
_vllm_reserved_blocks = Scheduler._inflight_prefill_reserved_blocks


def _split(
    self: Any,
    request: Request,
    num_new_tokens: int,
    num_new_local_computed_tokens: int = 0,
    num_external_computed_tokens: int = 0,
) -> int:
    """Return how many of the tokens a request may compute in this step."""
    # vLLM's method reads no manager, and its tests call it on what has none.
    manager = getattr(self, "kv_cache_manager", None)
    if not isinstance(manager, NaturalKVCacheManager):
        return _vllm_split(
            self,
            request,
            num_new_tokens,
            num_new_local_computed_tokens,
            num_external_computed_tokens,
        )
    before = num_new_local_computed_tokens + num_external_computed_tokens
    start = request.num_computed_tokens + before
    if _starts_later(self, request, request.num_tokens - start, num_new_tokens):
        return 0
    if num_new_tokens < request.num_tokens - start:
        num_new_tokens -= _left_to_short(self, request, num_new_tokens)
    return manager.next_boundary(request, start, start + num_new_tokens) - start


def _starts_later(scheduler: Any, request: Request, num_left: int, num_new: int) -> bool:
    """Return whether a prompt leaves the rest of a budget, which cuts it, to those before it.

    Prompts of this step end sooner without its first tokens, and it ends no later by starting in
    the next one. They have to outweigh the requests that generate, and the prompts behind it.
    """
    if num_new >= num_left or request.status is RequestStatus.RUNNING:
        return False
    threshold = scheduler.scheduler_config.long_prefill_token_threshold
    most = min(scheduler.max_num_scheduled_tokens, threshold or num_left)
    if not needs_more(num_left, num_new, most):
        return False
    num_prompts = sum(it.num_computed_tokens + 1 < it.num_tokens for it in scheduler.running)
    num_running, _ = scheduler.get_request_counts()
    budgets = scheduler.kv_cache_manager.step_tokens / scheduler.max_num_scheduled_tokens
    return prompts_outweigh(num_prompts, len(scheduler.waiting), num_running, budgets)


def _left_to_short(scheduler: Any, request: Request, chunk: int) -> int:
    """Return the tokens of a step that a prompt, which the budget cuts, leaves to short ones.

    Requests behind a prompt of many steps would all wait for its end.
    """
    threshold = scheduler.scheduler_config.long_prefill_token_threshold
    if scheduler.policy == SchedulingPolicy.PRIORITY or 0 < threshold <= chunk:
        return 0
    running, is_running = scheduler.running, request.status is RequestStatus.RUNNING
    behind = running[running.index(request) + 1 :] if is_running else []
    seats = scheduler.max_num_active_reqs - len(running) - (not is_running)
    waiting = islice((it for it in scheduler.waiting if it is not request), max(seats, 0))
    return tokens_of_short(
        chunk,
        (
            it.num_tokens_with_spec + it.num_output_placeholders - it.num_computed_tokens
            for it in behind
        ),
        map(scheduler.kv_cache_manager.num_uncached, waiting),
        scheduler.max_num_scheduled_tokens,
    )


def _handle_blocked(self: Any, request: Request) -> bool:
    """Return whether a waiting request may be scheduled; those behind it may be if it is not."""
    if not _vllm_handle_blocked(self, request):
        return False
    manager = self.kv_cache_manager
    if not isinstance(manager, NaturalKVCacheManager):
        return True
    # A session holds blocks while it waits for its next input, and vLLM does not preempt it.
    if request.num_computed_tokens > 0 and manager.is_stuck(request):
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
    return not manager.waits_for_checkpoint(request)


def _handle_stopped_request(self: Any, request: Request) -> bool:
    """Return whether a request that stopped is done, and not only its turn."""
    manager = self.kv_cache_manager
    if request.resumable and isinstance(manager, NaturalKVCacheManager):
        # vLLM drops the tokens of steps in flight and of drafts. A state that took them in, in
        # place, cannot drop them.
        is_ahead = request.num_output_placeholders > 0 or self.num_spec_tokens > 0
        if is_ahead and manager.has_states:
            num_computed, request.num_computed_tokens = request.num_computed_tokens, 0
            self._free_request_blocks(request)
            request.num_computed_tokens = num_computed
        else:
            manager._pause(request.request_id)
    return _vllm_handle_stopped_request(self, request)


def _update_session(self: Any, session: Request, update: Any) -> None:
    """Let a session go on with its client's next input."""
    _vllm_update_session(self, session, update)
    manager = self.kv_cache_manager
    is_natural = isinstance(manager, NaturalKVCacheManager)
    if is_natural and not any(manager.get_block_ids(session.request_id)):
        session.num_computed_tokens = 0


def count_in_slabs(scheduler: Any) -> None:
    """Let a scheduler with a connector count slabs."""
    manager = scheduler.kv_cache_manager
    if scheduler.connector is None or not isinstance(manager, NaturalKVCacheManager):
        return
    # A connector is shown hits rounded down to this. A state's block is longer than any request.
    scheduler.block_size = scheduler.hash_block_size
    num_drafts = scheduler.num_spec_tokens
    num_tokens = 1 + num_drafts + scheduler.num_lookahead_tokens if num_drafts else 0
    groups = scheduler.kv_cache_config.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    blocks = [0 if is_state(spec) else ceil_div(num_tokens, spec.block_size) for spec in specs]
    scheduler._spec_decode_step_blocks = sum(manager.num_units(blocks))


def _reserved_blocks(self: Any) -> int:
    """Return the slabs that prompts in flight still need, which a load leaves to them."""
    manager = self.kv_cache_manager
    if not isinstance(manager, NaturalKVCacheManager):
        return _vllm_reserved_blocks(self)
    if self.scheduler_reserve_full_isl:
        # An admission leaves to others what they were promised.
        return 0
    # A request whose load failed waits here for itself, and holds nothing.
    return sum(
        self._request_remaining_blocks(request)
        for request in self._inflight_prefills
        if any(manager.get_block_ids(request.request_id))
    )


def count_tokens(scheduler: Any) -> None:
    """Let the blocks that an engine shows, times their tokens, be its capacity in tokens.

    vLLM alone would show slabs, next to the tokens of an attention block.
    """
    if not isinstance(scheduler.kv_cache_manager, NaturalKVCacheManager):
        return
    cache = scheduler.cache_config
    if capacity := getattr(cache, "kv_cache_size_tokens", None):
        cache.num_gpu_blocks = max(1, capacity // cache.block_size)


REPLACED = (
    (Scheduler, "_mamba_block_aligned_split", _split),
    (Scheduler, "_handle_blocked_waiting_request", _handle_blocked),
    (Scheduler, "_handle_stopped_request", _handle_stopped_request),
    (Scheduler, "_update_request_as_session", _update_session),
    (Scheduler, "_inflight_prefill_reserved_blocks", _reserved_blocks),
)
"""Methods that level ``natural`` replaces."""
