"""The cache groups that a profile runs with."""

from enum import StrEnum

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

HASH_BLOCK_SIZE = 16


class Groups(StrEnum):
    """Kinds of model, by their cache groups."""

    FULL = "full"
    """One group of full attention, 16 tokens a block."""
    SWA = "swa"
    """One group of full attention and five with a sliding window of 1,024 tokens."""
    HYBRID = "hybrid"
    """One group of full attention and three of Mamba states, 528 tokens a block."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return 528 if self is Groups.HYBRID else HASH_BLOCK_SIZE

    def specs(self) -> list[KVCacheSpec]:
        """Return one spec a group."""
        full = FullAttentionSpec(
            block_size=self.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
        )
        match self:
            case Groups.FULL:
                return [full]
            case Groups.SWA:
                window = SlidingWindowSpec(
                    block_size=self.block_size,
                    num_kv_heads=1,
                    head_size=64,
                    dtype=torch.bfloat16,
                    sliding_window=1024,
                )
                return [full, *[window] * 5]
            case Groups.HYBRID:
                state = MambaSpec(
                    block_size=self.block_size,
                    shapes=((1, 1),),
                    dtypes=(torch.float32,),
                    page_size_padded=full.page_size_bytes,
                    mamba_cache_mode="align",
                )
                return [full, *[state] * 3]

    def config(self, num_blocks: int) -> KVCacheConfig:
        """Return what a worker would have reported."""
        groups = [
            KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(self.specs())
        ]
        return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
