"""The worker side over slabs: the same copies, from and to rows that lie a slab's run apart."""

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor

from hybrid_blocks.offload.slabs.rows import rows_of


class SlabWorker(OffloadingConnectorWorker):
    """vLLM's worker side. Each layer has rows of its own, one for each id of its group."""

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Note where the blocks of each layer lie."""
        config: Any = self.kv_cache_config
        groups = tuple(get_offloading_group_ids(config))
        tensors: list[CanonicalKVCacheTensor] = []
        refs: dict[int, list[CanonicalKVCacheRef]] = {number: [] for number in groups}
        for layer in rows_of(config, groups, kv_caches):
            refs[layer.group].append(CanonicalKVCacheRef(len(tensors), layer.page))
            tensors.append(CanonicalKVCacheTensor(layer.rows, layer.page))
        self._init_worker(CanonicalKVCaches(tensors, list(refs.values())))
