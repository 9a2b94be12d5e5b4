"""Counts of the manager as metrics of vLLM's ``/metrics``."""

from dataclasses import dataclass, field, fields
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    ConfigInfo,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)
from vllm.v1.kv_offload.cpu.common import CPUOffloadingMetrics
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from hybrid_blocks._core.offload import HostCache
from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.metrics import OFFLOAD_COUNTERS, OFFLOAD_GAUGES
from hybrid_blocks.offload.layout import Groups
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.queue import TierQueue
from hybrid_blocks.offload.tiers.rates import ComputeRate


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """All metrics by name; those of vLLM's own spec keep their names."""
    counters = {
        figure.family: OffloadingCounterMetadata(documentation=figure.documentation)
        for figure in OFFLOAD_COUNTERS.values()
    }
    gauges = {
        figure.family: OffloadingGaugeMetadata(documentation=figure.documentation)
        for figure in OFFLOAD_GAUGES.values()
    }
    return {**CPUOffloadingSpec.build_metric_definitions({}), **counters, **gauges}


@dataclass(frozen=True)
class HostInfo(ConfigInfo):
    """Labels of ``vllm:kv_offload_config_info``.

    vLLM's names, without its count of chunks: chunks of different groups differ in size.
    """

    cpu_blocks_per_chunk: int
    cpu_kv_cache_size_bytes: int
    cpu_kv_cache_size_tokens: int | None

    @classmethod
    def of(cls, groups: Groups, num_bytes: int, max_model_len: int) -> "HostInfo":
        """Describe ``num_bytes`` of host memory; tokens are those of the longest requests."""
        request_bytes = 0
        for group in groups.all:
            num_chunks = ceil_div(max_model_len, group.tokens)
            if group.window is not None:
                num_chunks = min(num_chunks, group.window)
            request_bytes += num_chunks * groups.chunk_bytes(group)
        return cls(
            cpu_blocks_per_chunk=1,
            cpu_kv_cache_size_bytes=num_bytes,
            cpu_kv_cache_size_tokens=(
                num_bytes * max_model_len // request_bytes if request_bytes else None
            ),
        )


@dataclass
class Counts:
    """Counts since the last report, under the names of the metrics."""

    lookups: int = 0
    stored_chunks: int = 0
    loaded_chunks: int = 0
    evicted_chunks: int = 0
    stores_refused: int = 0
    promoted_bytes: int = 0
    promotions_refused: int = 0
    passed_by_tokens: int = 0
    # Chunks that each store asked room for.
    store_sizes: list[int] = field(default_factory=list)

    def take(
        self, cache: HostCache, num_bytes: int, below: TiersBelow, computing: ComputeRate | None
    ) -> OffloadingConnectorStats:
        """Report, with the gauges of a host memory of ``num_bytes``, and begin again from zero."""
        stats = OffloadingConnectorStats()
        for counter in fields(self):
            if figure := OFFLOAD_COUNTERS.get(counter.name):
                stats.increase_counter(figure.family, getattr(self, counter.name))
                setattr(self, counter.name, 0)
        for size in self.store_sizes:
            stats.observe_histogram(CPUOffloadingMetrics.CPU_ALLOCATION_SIZE, size)
        self.store_sizes.clear()
        writes = cache.pending_bytes / num_bytes
        reads = cache.pinned_chunk_bytes / num_bytes
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_USAGE_PERC, writes + reads)
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_WRITE_USAGE_PERC, writes)
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_READ_USAGE_PERC, reads)
        rate = (computing and computing.tokens_per_second) or 0
        for name, value in (_gauges(cache, below) | {"prompt_tokens_per_second": rate}).items():
            stats.set_gauge(OFFLOAD_GAUGES[name].family, value)
        return stats


def _gauges(cache: HostCache, below: TiersBelow) -> dict[str, float]:
    disk = below.disk.store if below.disk else None
    objects = below.objects.store if below.objects else None
    return {
        "host_live_bytes": cache.live_bytes,
        "host_held_bytes": cache.held_bytes,
        "host_units": cache.num_units,
        "disk_bytes": disk.num_bytes if disk else 0,
        "disk_chunks": disk.num_chunks if disk else 0,
        "object_chunks": objects.num_chunks if objects else 0,
        "object_uploads": objects.num_uploads if objects else 0,
        "disk_refused": _is_refused(below.disk),
        "object_refused": _is_refused(below.objects),
        **_read_gauges("disk", below.disk),
        **_read_gauges("object", below.objects),
    }


def _is_refused(tier: TierQueue[Any] | None) -> bool:
    return tier is not None and (tier.store.is_paused or tier.is_stuck)


def _read_gauges(name: str, tier: TierQueue[Any] | None) -> dict[str, float]:
    return {
        f"{name}_read_bytes_per_second": tier.rate.bytes_per_second if tier else 0,
        f"{name}_read_latency_seconds": tier.rate.latency if tier else 0,
    }
