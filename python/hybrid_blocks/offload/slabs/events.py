"""Events of host memory, in vLLM's words."""

from collections.abc import Iterator

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.kv_offload.base import OffloadingEvent, get_offload_block_hash, get_offload_group_idx

_MEDIUM = "CPU"


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
