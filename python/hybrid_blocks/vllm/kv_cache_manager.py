"""vLLM's ``KVCacheManager`` at level ``pool``: its own, over the pool in Rust."""

from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager as VllmKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.stats import PrefixCacheStats

from hybrid_blocks.vllm import notice
from hybrid_blocks.vllm.level import Level, requested
from hybrid_blocks.vllm.metrics import Publisher, Sample

__all__ = ["KVCacheManager", "VllmKVCacheManager"]


class KVCacheManager(VllmKVCacheManager):
    """vLLM's manager, which says what it stands on."""

    hybrid_blocks_level = Level.POOL

    def __init__(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_config, *args, **kwargs)
        reason = None if requested() is Level.POOL else "level manager is not in this release"
        notice.log(self.hybrid_blocks_level, kv_cache_config, reason)
        self._publisher = Publisher()

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return vLLM's statistics since the last call, once a step; publish ours."""
        self._publisher.publish(self._samples)
        return super().make_prefix_cache_stats()

    def _samples(self) -> list[Sample]:
        blocks: Any = self.block_pool.blocks
        cached, available = blocks.num_cached, blocks.num_free
        counts = {
            "live": len(blocks) - 1 - available,
            "cached": cached,
            "free": available - cached,
        }
        return [
            Sample("hybrid_blocks_blocks", "Blocks by state.", "gauge", {"state": state}, count)
            for state, count in counts.items()
        ]
