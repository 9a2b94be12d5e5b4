"""One replay with tiers below the device, from a trace to its figures. Imports vLLM."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from time import perf_counter

from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hybrid_blocks.replay.cache import Cache, unit_of
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.limits import RequestLimit, TooLarge, find_too_large
from hybrid_blocks.replay.result import served_by
from hybrid_blocks.replay.tiers.below import Below
from hybrid_blocks.replay.tiers.device import (
    longest_in_slabs,
    plan_device,
    slab_device,
    stock_device,
)
from hybrid_blocks.replay.tiers.hybrid import make_hybrid
from hybrid_blocks.replay.tiers.live import live_bytes
from hybrid_blocks.replay.tiers.loop import Loop
from hybrid_blocks.replay.tiers.result import TieredResult, TierFigures
from hybrid_blocks.replay.tiers.side import Side
from hybrid_blocks.replay.tiers.sizes import TierBytes
from hybrid_blocks.replay.tiers.slabs import at_level_natural
from hybrid_blocks.replay.tiers.stock import make_stock
from hybrid_blocks.trace import Trace


def replay_tiers(
    trace: Trace,
    cache: Cache,
    tiers: TierBytes,
    side: Side,
    config: EngineConfig,
    *,
    retention: int | None = 0,
    beside: Sequence[Side] = (),
    on_progress: Callable[[int], None] = lambda _: None,
) -> TieredResult:
    """Serve a trace by vLLM's scheduler over the device, host memory and perhaps a disk.

    Requests are left out that a device of those ``beside`` it could not hold either.

    Raises:
        ReplayError: a cache that is no device of vLLM's, or a request that does not fit.

    """
    limits = [_limit(cache, it) for it in dict.fromkeys(it.is_natural for it in (side, *beside))]
    too_large = find_too_large(
        trace, limits, num_speculative_tokens=0, reject=config.reject_too_large
    )
    make_device = slab_device if side.is_natural else stock_device
    make_below = partial(make_hybrid if side.is_ours else make_stock, tiers=tiers, side=side)
    with at_level_natural() if side.is_natural else nullcontext():
        device = make_device(cache, config, make_below, retention)
        below = device.connector.below
        try:
            loop = Loop(trace, device, config.step_time, too_large.requests)
            start = perf_counter()
            loop.run(on_progress)
            seconds = perf_counter() - start
            return _result(trace, cache, config, tiers, side, loop, below, too_large, seconds)
        finally:
            below.close()


def _limit(cache: Cache, is_natural: bool) -> RequestLimit:
    if is_natural:
        return RequestLimit(
            manager="level natural",
            num_blocks=cache.geometry.usable_slabs,
            max_tokens=longest_in_slabs(cache) - 1,
            unit=unit_of(cache.geometry, has_model=True),
        )
    plan = plan_device(cache)
    return RequestLimit(manager="vllm", num_blocks=plan.num_blocks, max_tokens=plan.longest() - 1)


def _result(  # noqa: PLR0917 - of one call
    trace: Trace,
    cache: Cache,
    config: EngineConfig,
    tiers: TierBytes,
    side: Side,
    loop: Loop,
    below: Below,
    too_large: TooLarge,
    seconds: float,
) -> TieredResult:
    ledger = below.ledger
    figures = _tiers(cache, tiers, loop, below)
    hits = sum(tier.hit_tokens for tier in figures)
    live = None
    if ledger.host_evicted_bytes:
        live = live_bytes(below.groups, below.finished, below.is_on_host) / tiers.host
    return TieredResult(
        **served_by(trace, cache, config),
        manager=side.label,
        requests=loop.finished,
        rejected_requests=len(too_large.requests),
        left_out=too_large.reasons,
        prompt_tokens=loop.prompt_tokens,
        output_tokens=loop.output_tokens,
        hit_tokens=hits,
        hit_rate=hits / max(loop.prompt_tokens, 1),
        tiers=figures,
        promotions=ledger.promotions,
        promoted_bytes=ledger.promoted_bytes,
        wasted_promotions=ledger.wasted_promotions,
        loaded_chunks=ledger.loaded_chunks,
        host_live_share=live,
        preemptions=loop.preemptions,
        peak_running=loop.peak_running,
        steps=loop.num_steps,
        virtual_seconds=loop.now,
        wall_seconds=seconds,
    )


def _tiers(cache: Cache, tiers: TierBytes, loop: Loop, below: Below) -> tuple[TierFigures, ...]:
    ledger = below.ledger

    def share(tokens: int) -> float:
        return tokens / max(loop.prompt_tokens, 1)

    host, disk = (loop.hits.get(it, 0) for it in (CacheHitSource.HOST, CacheHitSource.DISK))
    figures = [
        TierFigures(
            tier="device",
            total_bytes=cache.memory_bytes,
            hit_tokens=loop.device_hits,
            hit_rate=share(loop.device_hits),
        ),
        TierFigures(
            tier="host",
            total_bytes=tiers.host,
            hit_tokens=host,
            hit_rate=share(host),
            stored_bytes=ledger.host_stored_bytes,
            evicted_bytes=ledger.host_evicted_bytes,
            refused=ledger.host_refused_stores,
        ),
    ]
    if tiers.disk:
        figures.append(
            TierFigures(
                tier="disk",
                total_bytes=tiers.disk,
                hit_tokens=disk,
                hit_rate=share(disk),
                stored_bytes=ledger.disk_stored_bytes,
                evicted_bytes=ledger.disk_stored_bytes - _disk_bytes(below),
                refused=ledger.disk_refused_chunks,
            )
        )
    return tuple(figures)


def _disk_bytes(below: Below) -> int:
    """Bytes of chunks that the disk holds in the end."""
    keys = list(dict.fromkeys(chain.from_iterable(it.keys for it in below.finished)))
    held = zip(keys, below.on_disk(keys), strict=True)
    return sum(below.ledger.disk_bytes(key) for key, is_there in held if is_there)
