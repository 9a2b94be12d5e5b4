"""The worker side over slabs: the same copies, from and to rows that lie a slab's run apart."""

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor

from hybrid_blocks.errors import HybridBlocksError


class SlabWorker(OffloadingConnectorWorker):
    """vLLM's worker side. Each layer has rows of its own, one for each id of its group."""

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Note where the blocks of each layer lie."""
        config: Any = self.kv_cache_config
        placed = {
            name: (tensor, row)
            for tensor in config.kv_cache_tensors
            for row, name in enumerate(tensor.layers)
        }
        tensors: list[CanonicalKVCacheTensor] = []
        refs: list[list[CanonicalKVCacheRef]] = []
        for number in get_offloading_group_ids(config):
            group = config.kv_cache_groups[number]
            page = group.kv_cache_spec.page_size_bytes
            num_ids = config.num_blocks * config.blocks_per_slab_of(number)
            refs.append([])
            for name in group.layer_names:
                tensor, row = placed[name]
                refs[-1].append(CanonicalKVCacheRef(len(tensors), page))
                rows = _rows(kv_caches[name], num_ids, page, tensor.block_stride)
                expected = tensor.offset + row * tensor.layer_stride
                if rows.storage_offset() != expected:
                    raise HybridBlocksError(
                        f"layer {name} begins at byte {rows.storage_offset()} of the KV cache, "
                        f"not {expected}, where level natural places it; set HYBRID_BLOCKS=manager"
                    )
                tensors.append(CanonicalKVCacheTensor(rows, page))
        self._init_worker(CanonicalKVCaches(tensors, refs))


def _rows(cache: Any, num_ids: int, page: int, stride: int) -> torch.Tensor:
    """Return the bytes of a layer's blocks, one row an id. A state's parts lie side by side."""
    first: torch.Tensor = cache[0] if isinstance(cache, list | tuple) else cache
    return torch.tensor([], dtype=torch.int8, device=first.device).set_(
        first.untyped_storage(),
        first.storage_offset() * first.element_size(),
        (num_ids, page),
        (stride, 1),
    )
