"""The figures of a replay."""

from typing import Any, Self

import msgspec
import numpy as np

from hybrid_blocks.metrics import ENDS
from hybrid_blocks.tools.replay.cache import BlockUnit, Cache
from hybrid_blocks.tools.replay.engine import VirtualEngine
from hybrid_blocks.tools.replay.limits import LeftOut
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.replay.places import PlaceCount, PlaceCounter
from hybrid_blocks.tools.replay.times import Times
from hybrid_blocks.tools.trace import Sharing, Trace

COUNTED = ("checkpoints", "forks", "host_tokens", *(f"limit_{end}" for end in ENDS))
"""Fields that managers count themselves, under the same names."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one replay, as ``--json`` has them.

    The reference (``replay-figures.md``) has the meaning and the unit of each field.

    ``model``, ``tp`` and ``kv_cache_dtype`` are None where the cache is given in blocks. A figure
    that the manager or the options do not give is None.
    """

    trace: str
    model: str | None
    memory_bytes: int
    tp: int | None
    kv_cache_dtype: str | None
    num_speculative_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    manager: str
    requests: int
    rejected_requests: int
    left_out: tuple[LeftOut, ...]
    damaged_lines: int
    skipped_lines: tuple[int, ...]
    cut_off_after: int | None
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    hit_rate: float
    block_hit_rate: float
    sequential_hit_rate: float | None
    peak_running: int
    preemptions: int
    recomputed_tokens: int
    steps: int
    manager_us_per_step_p50: float
    manager_us_per_step_p99: float
    manager_seconds: float
    block_size: int
    blocks_total: int
    block_unit: str
    block_tokens: int | None
    block_bytes: int | None
    blocks_used_peak: int
    pool_use_mean: float
    memory_efficiency: float | None
    reserved_for: dict[str, float] | None
    full_load_steps: int
    needless_waits: int
    live_bytes_per_request: float | None
    concurrency_bound: float | None
    recompute_flops_saved: float | None
    checkpoints: int | None
    places: tuple[PlaceCount, ...] | None
    forks: int | None
    limit_complete: int | None
    limit_unseen: int | None
    limit_attention_evicted: int | None
    limit_window_evicted: int | None
    limit_no_checkpoint: int | None
    limit_alignment: int | None
    host_tokens: int | None
    virtual_seconds: float
    wall_seconds: float
    variant: str | None = None
    placement: str | None = None
    share: str | None = None
    card: str | None = None
    times: Times | None = None

    @property
    def unit(self) -> BlockUnit:
        """The unit of ``blocks_total``."""
        return BlockUnit(name=self.block_unit, tokens=self.block_tokens, num_bytes=self.block_bytes)

    @classmethod
    def of(
        cls,
        engine: VirtualEngine,
        *,
        trace: Trace,
        manager_name: str,
        manager: ReplayManager,
        cache: Cache,
        sharing: Sharing | None,
        places: PlaceCounter | None = None,
        wall_seconds: float,
    ) -> Self:
        """Collect the figures of an engine that has run."""
        counters, load, stats = engine.counters, engine.full_load, manager.stats()
        counted: dict[str, Any] = {name: stats.get(name) for name in COUNTED}
        live = load.live_bytes_per_request
        step_us = np.frombuffer(engine.meter.steps, dtype=np.int64) / 1e3
        p50, p99 = np.percentile(step_us, (50, 99)) if len(step_us) else (0.0, 0.0)
        targets = engine.config.targets
        used = np.frombuffer(engine.timeline.used_blocks, dtype=np.int64)
        seconds = np.diff(np.frombuffer(engine.timeline.seconds), prepend=0.0)
        return cls(
            trace=trace.name,
            damaged_lines=trace.damaged_lines,
            skipped_lines=trace.skipped,
            cut_off_after=trace.cut_off_after,
            model=cache.model.name if cache.model else None,
            memory_bytes=cache.memory_bytes,
            tp=cache.deployment.tp if cache.deployment else None,
            kv_cache_dtype=cache.deployment.kv_cache_dtype if cache.deployment else None,
            num_speculative_tokens=cache.num_speculative_tokens,
            max_num_seqs=engine.config.max_num_seqs,
            max_num_batched_tokens=engine.config.max_num_batched_tokens,
            manager=manager_name,
            requests=counters.finished,
            rejected_requests=counters.rejected,
            left_out=engine.too_large.reasons,
            prompt_tokens=counters.prompt_tokens,
            output_tokens=counters.output_tokens,
            hit_tokens=counters.hit_tokens,
            hit_rate=counters.hit_tokens / max(counters.prompt_tokens, 1),
            block_hit_rate=counters.hit_blocks / max(counters.prompt_blocks, 1),
            sequential_hit_rate=(
                float(sharing.hit_tokens / trace.prompt_tokens.sum(dtype=np.int64))
                if sharing
                else None
            ),
            peak_running=counters.peak_running,
            preemptions=counters.preemptions,
            recomputed_tokens=counters.recomputed_tokens,
            steps=len(step_us),
            manager_us_per_step_p50=float(p50),
            manager_us_per_step_p99=float(p99),
            manager_seconds=float(step_us.sum() / 1e6),
            block_size=cache.geometry.hash_block_size,
            blocks_total=manager.num_blocks,
            block_unit=manager.unit.name,
            block_tokens=manager.unit.tokens,
            block_bytes=manager.unit.num_bytes,
            blocks_used_peak=int(used.max(initial=0)),
            pool_use_mean=float(used @ seconds) / max(engine.now, 1e-9) / manager.num_blocks,
            memory_efficiency=load.memory_efficiency,
            reserved_for=load.reserved_for,
            full_load_steps=load.steps,
            needless_waits=load.needless_waits,
            live_bytes_per_request=live,
            concurrency_bound=cache.memory_bytes / live if live else None,
            recompute_flops_saved=counters.saved_flops if cache.model else None,
            **counted,
            places=places.counts() if places is not None else None,
            card=cache.deployment.card if cache.deployment else None,
            times=None if targets is None else Times.of(engine, targets),
            virtual_seconds=engine.now,
            wall_seconds=wall_seconds,
        )
