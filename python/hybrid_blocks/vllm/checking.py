"""Attaches the check of provenance to vLLM's schedulers, where the environment asks for it."""

from itertools import count
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from hybrid_blocks.vllm.level import CHECK
from hybrid_blocks.vllm.natural.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.provenance import Provenance

logger = init_logger("vllm.hybrid_blocks")

STEPS_BETWEEN_CHECKS_OF_BOOKS = 1_000
"""After so many steps the core also compares its own lists, owners and keys with each other."""

_BEFORE: list[Any] = []
"""How schedulers were made before; level ``natural`` makes them in a way of its own."""


def install() -> None:
    """Check what each scheduler made from now on says. A second call changes nothing."""
    if Scheduler.__init__ is not _init:
        _BEFORE.append(Scheduler.__init__)
        Scheduler.__init__ = _init  # type: ignore[method-assign]


def uninstall() -> None:
    """Leave schedulers made from now on as they are."""
    if _BEFORE:
        Scheduler.__init__ = _BEFORE.pop()  # type: ignore[method-assign]


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    _BEFORE[-1](self, *args, **kwargs)
    if self.connector is not None:
        logger.warning(
            "hybrid_blocks: %s: not checked, as a KV connector brings content of its own", CHECK
        )
        return
    attach(self)
    logger.info("hybrid_blocks: %s: hits, copies, zeroing and hand-outs are checked", CHECK)


def attach(scheduler: Any) -> Provenance:
    """Check the steps of a scheduler from now on, and return what remembers them."""
    config = scheduler.kv_cache_config
    provenance = Provenance(
        config,
        scheduler.hash_block_size,
        scheduler.requests,
        num_drafts=scheduler.num_spec_tokens,
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
