"""Loads of a KV connector: the hits that it is shown, and the slabs left to others meanwhile."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import MambaSpec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager

_vllm_reserved_blocks = Scheduler._inflight_prefill_reserved_blocks


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
    blocks = [
        0 if isinstance(spec, MambaSpec) else ceil_div(num_tokens, spec.block_size)
        for spec in specs
    ]
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


REPLACED = ((Scheduler, "_inflight_prefill_reserved_blocks", _reserved_blocks),)
"""Methods that level ``natural`` replaces."""
