"""vLLM's ``KVCacheManager`` at level ``pool``: its own, over the pool in Rust."""

from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager as VllmKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig

from hybrid_blocks.vllm import notice
from hybrid_blocks.vllm.level import Level, requested

__all__ = ["KVCacheManager", "VllmKVCacheManager"]


class KVCacheManager(VllmKVCacheManager):
    """vLLM's manager, which says what it stands on."""

    hybrid_blocks_level = Level.POOL

    def __init__(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_config, *args, **kwargs)
        reason = None if requested() is Level.POOL else "level manager is not in this release"
        notice.log(self.hybrid_blocks_level, kv_cache_config, reason)
