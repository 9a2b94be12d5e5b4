"""The number of blocks that an engine shows to routers, autoscalers and vLLM's own metrics."""

from typing import Any

from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager


def count_tokens(scheduler: Any) -> None:
    """Let the blocks that an engine shows, times their tokens, be its capacity in tokens.

    vLLM shows slabs there by itself, beside the tokens of an attention block.
    """
    if not isinstance(scheduler.kv_cache_manager, NaturalKVCacheManager):
        return
    cache = scheduler.cache_config
    if capacity := getattr(cache, "kv_cache_size_tokens", None):
        cache.num_gpu_blocks = max(1, capacity // cache.block_size)
