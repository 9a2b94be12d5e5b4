"""Events of chunks in host memory, and counts of transfers, as vLLM publishes them."""

from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
    _TransferMetricName,
)
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.kv_offload.base import OffloadingEvent, get_offload_block_hash, get_offload_group_idx

_MEDIUM = "CPU"
_LOAD = _TransferMetricName.LOAD_BYTES, _TransferMetricName.LOAD_TIME, _TransferMetricName.LOAD_SIZE
_STORE = (
    _TransferMetricName.STORE_BYTES,
    _TransferMetricName.STORE_TIME,
    _TransferMetricName.STORE_SIZE,
)


def kv_events(event: OffloadingEvent) -> Iterator[KVCacheEvent]:
    """Yield an event for each chunk: its digest and its group, no tokens."""
    if event.metadata_only:
        return
    for key in event.keys:
        hashes = [maybe_convert_block_hash(BlockHash(get_offload_block_hash(key)))]
        group = get_offload_group_idx(key)
        if event.removed:
            yield BlockRemoved(block_hashes=hashes, medium=_MEDIUM, group_idx=group)
        else:
            yield BlockStored(
                block_hashes=hashes,
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=_MEDIUM,
                lora_name=None,
                group_idx=group,
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
