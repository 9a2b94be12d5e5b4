"""Sessions whose client streams its input: a state that ran ahead of its request is given up."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager

_vllm_handle_stopped_request = Scheduler._handle_stopped_request
_vllm_update_session = Scheduler._update_request_as_session


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


REPLACED = (
    (Scheduler, "_handle_stopped_request", _handle_stopped_request),
    (Scheduler, "_update_request_as_session", _update_session),
)
"""Methods that level ``natural`` replaces."""
