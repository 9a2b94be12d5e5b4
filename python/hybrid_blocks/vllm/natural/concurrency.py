"""The capacity that an engine logs and publishes."""

from vllm.config import VllmConfig
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig

from hybrid_blocks.geometry import capacity
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.natural import notes, stock
from hybrid_blocks.vllm.natural.groups import arena_plan

vllm_get_max_concurrency_for_kv_cache_config = (
    kv_cache_utils.get_max_concurrency_for_kv_cache_config
)


def get_max_concurrency_for_kv_cache_config(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
) -> float:
    """Return how many requests of the maximum length fit, as ``hybrid-blocks plan`` counts them."""
    if not isinstance(kv_cache_config, NaturalKVCacheConfig):
        return vllm_get_max_concurrency_for_kv_cache_config(vllm_config, kv_cache_config)
    plan = arena_plan(vllm_config, kv_cache_config)
    config = theirs = None
    # The scheduler has the layers of the first pipeline stage alone.
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        config = stock.config(vllm_config, kv_cache_config.kv_cache_groups, plan.arena_bytes)
    if config is not None:
        runs = vllm_get_max_concurrency_for_kv_cache_config(vllm_config, config)
        theirs = config.num_blocks, runs
    notes.planned(vllm_config, plan, theirs)
    return capacity.concurrency(plan, vllm_config.model_config.max_model_len)
