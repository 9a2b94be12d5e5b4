"""Counts of transfers, by the names of vLLM's own."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
    _TransferMetricName,
)

_LOAD = _TransferMetricName.LOAD_BYTES, _TransferMetricName.LOAD_TIME, _TransferMetricName.LOAD_SIZE
_STORE = (
    _TransferMetricName.STORE_BYTES,
    _TransferMetricName.STORE_TIME,
    _TransferMetricName.STORE_SIZE,
)


def note_transfers(stats: OffloadingConnectorStats, of_workers: TransferStats) -> None:
    """Add what workers copied."""
    directions: tuple[Any, ...] = ((_LOAD, of_workers.load), (_STORE, of_workers.store))
    for (num_bytes, seconds, size), moved in directions:
        if moved.is_empty():
            continue
        stats.increase_counter(num_bytes, moved.bytes)
        stats.increase_counter(seconds, moved.time)
        for one in moved.sizes:
            stats.observe_histogram(size, one)
