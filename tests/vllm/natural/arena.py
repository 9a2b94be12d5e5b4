"""The views that vLLM's own functions make of a configuration, and the bytes they cover."""

from typing import Any

import numpy as np
import torch
from hybrid_blocks.vllm.natural import groups as natural
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import (
    AttentionGroup,
    allocate_kv_cache,
    bind_kv_cache,
    prepare_kernel_block_sizes,
)

from natural.engine import Engine


class Arena:
    """A configuration of ``num_slabs`` slabs, allocated and bound as a stage's worker does it."""

    def __init__(self, engine: Engine, num_slabs: int, device: str, stage: int = 0) -> None:
        self.engine = engine
        groups = engine.stage_configs[stage].kv_cache_groups
        self.config = natural.make_config(engine.config, groups, num_slabs)
        held = {name: engine.layers[name] for group in groups for name in group.layer_names}
        layout = KVCacheLayout[str(engine.config.cache_config.kv_cache_layout)]
        self.attention_groups: list[list[AttentionGroup]] = [
            []
            if isinstance(group.kv_cache_spec, MambaSpec) or not group.layer_names
            else [AttentionGroup(engine.backend, group.layer_names, group.kv_cache_spec, number)]  # type: ignore[arg-type]
            for number, group in enumerate(self.config.kv_cache_groups)
        ]
        self.kernel_block_sizes = prepare_kernel_block_sizes(self.config, self.attention_groups)
        self.views = allocate_kv_cache(
            self.config, torch.device(device), layout, self.kernel_block_sizes
        )
        self.runner_kv_caches: list[torch.Tensor] = []
        bind_kv_cache(self.views, held, self.runner_kv_caches, 1, groups)

    @property
    def size(self) -> int:
        """Bytes of the arena."""
        return self.config.kv_cache_tensors[0].size

    @property
    def num_regions(self) -> int:
        """Parts of a slab, each in a run of memory of its own."""
        return natural.layout_of(self.config.kv_cache_groups).num_regions

    def slab_of(self, address: Any) -> Any:
        """Slab that owns a byte."""
        region = self.size // self.num_regions
        return address % region // (region // self.config.num_blocks)

    def ranges(self, name: str) -> tuple[Any, int]:
        """First byte of each id of a layer, and the bytes of one."""
        view = self.views[name]
        width = view.element_size()
        inner = 1 + sum((n - 1) * s for n, s in zip(view.shape[1:], view.stride()[1:], strict=True))
        starts = (view.storage_offset() + np.arange(view.shape[0]) * view.stride(0)) * width
        return starts, inner * width
