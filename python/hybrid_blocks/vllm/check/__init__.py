"""Attaches the check of provenance to vLLM's schedulers, where the environment asks for it."""

from collections.abc import Callable
from itertools import count
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput

from hybrid_blocks.vllm.check.provenance import Provenance
from hybrid_blocks.vllm.level import CHECK
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.scheduler.hooks import when_made

STEPS_BETWEEN_CHECKS_OF_BOOKS = 1_000
"""Steps after which the core compares its own lists, owners and keys with each other."""


def install() -> Callable[[], None]:
    """Check what each scheduler made from now on says, and return what ends that."""
    return when_made(_check)


def _check(scheduler: Any) -> None:
    if scheduler.connector is not None:
        logger.warning(
            "hybrid_blocks: %s: not checked, as a KV connector brings content of its own", CHECK
        )
        return
    attach(scheduler)
    logger.info("hybrid_blocks: %s: hits, copies, zeroing and hand-outs are checked", CHECK)


def attach(scheduler: Any) -> Provenance:
    """Check the steps of a scheduler from now on, and return what remembers them."""
    config = scheduler.kv_cache_config
    provenance = Provenance(
        config,
        scheduler.hash_block_size,
        scheduler.requests,
        num_drafts=scheduler.num_spec_tokens,
        dcp_world_size=scheduler.dcp_world_size,
        is_async=isinstance(scheduler, AsyncScheduler),
        zeroes_blocks=isinstance(config, NaturalKVCacheConfig) and config.zeroes_single_blocks,
    )
    # vLLM's own pool keeps no books that could be compared.
    blocks = getattr(scheduler.kv_cache_manager.block_pool, "_blocks", None)
    steps = count(1)
    # The class's own methods, or those of a class derived from it: ours, of one call.
    schedule, preempt = scheduler.schedule, scheduler._preempt_request
    handle_stopped, manager = scheduler._handle_stopped_request, scheduler.kv_cache_manager

    def checked_schedule(*args: Any, **kwargs: Any) -> SchedulerOutput:
        output: SchedulerOutput = schedule(*args, **kwargs)
        provenance.check(output)
        if blocks is not None and next(steps) % STEPS_BETWEEN_CHECKS_OF_BOOKS == 0:
            blocks.check_integrity()
        return output

    def noted_preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
        provenance.preempt(request)
        return preempt(request, *args, **kwargs)

    def noted_stop(request: Any) -> Any:
        written = request.num_computed_tokens - request.num_output_placeholders
        is_done = handle_stopped(request)
        if not is_done and not any(manager.get_block_ids(request.request_id)):
            provenance.give_up(request.request_id, written)
        return is_done

    scheduler.schedule = checked_schedule
    scheduler._handle_stopped_request = noted_stop
    scheduler._preempt_request = noted_preempt
    scheduler.hybrid_blocks_provenance = provenance
    return provenance
