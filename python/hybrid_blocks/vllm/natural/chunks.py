"""Where prefill chunks end, and who waits for that: checkpoints are taken there."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager

_vllm_split = Scheduler._mamba_block_aligned_split
_vllm_handle_blocked = Scheduler._handle_blocked_waiting_request


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
    return manager.next_boundary(request, start, start + num_new_tokens) - start


def _handle_blocked(self: Any, request: Request) -> bool:
    """Return whether a waiting request may be scheduled; those behind it may be if it is not."""
    if not _vllm_handle_blocked(self, request):
        return False
    manager = self.kv_cache_manager
    if not isinstance(manager, NaturalKVCacheManager):
        return True
    # A session that goes on holds blocks while it waits, and nobody preempts it.
    if request.num_computed_tokens > 0 and manager.is_stuck(request):
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
    return not manager.waits_for_checkpoint(request)


REPLACED = (
    (Scheduler, "_mamba_block_aligned_split", _split),
    (Scheduler, "_handle_blocked_waiting_request", _handle_blocked),
)
"""Methods that level ``natural`` replaces."""
