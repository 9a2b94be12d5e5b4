"""Counts of the manager as metrics of vLLM's ``/metrics``."""

from dataclasses import dataclass, fields
from typing import Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

from hybrid_blocks._core.offload import HostCache
from hybrid_blocks.offload.tiers_below import TiersBelow

_PREFIX: Final = "hybrid_blocks:offload_"
_COUNTERS: Final = {
    "lookups": "Look-ups of requests; each is one call for all groups and tiers.",
    "stored_chunks": "Chunks copied from the device to host memory.",
    "loaded_chunks": "Chunks copied from host memory to the device.",
    "evicted_chunks": "Chunks whose place in host memory was taken.",
    "stores_refused": "Stores that found no room in host memory beside what transfers use.",
    "promoted_bytes": "Bytes read from disk and objects to host memory.",
    "promotions_refused": "Reads from disk and objects that found no room in host memory at first.",
}
_GAUGES: Final = {
    "host_live_bytes": "Bytes of host memory that states, and the attention they need, take.",
    "host_held_bytes": "Bytes of host memory whose chunks can be found.",
    "host_units": "Lengths in host memory from which a request can go on.",
    "disk_bytes": "Bytes of segment files.",
    "disk_chunks": "Chunks on disk.",
    "object_chunks": "Chunks that the store of objects is known to hold.",
    "object_uploads": "Chunks that wait for their upload to the store of objects.",
    "object_refused": "1 while the store of objects is not used, as it refused.",
}


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """All metrics by name."""
    counters = {
        _PREFIX + name: OffloadingCounterMetadata(documentation=text)
        for name, text in _COUNTERS.items()
    }
    gauges = {
        _PREFIX + name: OffloadingGaugeMetadata(documentation=text)
        for name, text in _GAUGES.items()
    }
    return {**counters, **gauges}


@dataclass
class Counts:
    """What was counted since it was last reported; the names are those of the metrics."""

    lookups: int = 0
    stored_chunks: int = 0
    loaded_chunks: int = 0
    evicted_chunks: int = 0
    stores_refused: int = 0
    promoted_bytes: int = 0
    promotions_refused: int = 0

    def take(self, cache: HostCache, below: TiersBelow) -> OffloadingConnectorStats:
        """Report and begin anew."""
        stats = OffloadingConnectorStats()
        for field in fields(self):
            stats.increase_counter(_PREFIX + field.name, getattr(self, field.name))
            setattr(self, field.name, 0)
        disk = below.disk.store if below.disk else None
        objects = below.objects.store if below.objects else None
        gauges = {
            "host_live_bytes": cache.live_bytes,
            "host_held_bytes": cache.held_bytes,
            "host_units": cache.num_units,
            "disk_bytes": disk.num_bytes if disk else 0,
            "disk_chunks": disk.num_chunks if disk else 0,
            "object_chunks": objects.num_chunks if objects else 0,
            "object_uploads": objects.num_uploads if objects else 0,
            "object_refused": int(objects.is_paused) if objects else 0,
        }
        for name, value in gauges.items():
            stats.set_gauge(_PREFIX + name, value)
        return stats
