"""The planning of memory as vLLM asks for it before 0.33: functions, where 0.33 has a builder."""

from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

from hybrid_blocks.vllm.manager.kv_cache_manager import note_refusal
from hybrid_blocks.vllm.natural import groups as natural
from hybrid_blocks.vllm.natural import pipeline_stages, prefill_checkpoints, refusal

_utils: Any = kv_cache_utils
vllm_get_kv_cache_groups: Callable[..., list[KVCacheGroupSpec]] = _utils.get_kv_cache_groups
vllm_get_kv_cache_config_from_groups: Callable[..., KVCacheConfig] = (
    _utils.get_kv_cache_config_from_groups
)
vllm_pool_bytes_per_block: Callable[..., int] = _utils._pool_bytes_per_block
vllm_max_memory_usage_bytes_from_groups: Callable[..., int] = (
    _utils._max_memory_usage_bytes_from_groups
)
vllm_project_kv_cache_groups_to_worker: Callable[..., list[KVCacheGroupSpec]] = (
    _utils._project_kv_cache_groups_to_worker
)
vllm_get_kv_cache_configs: Callable[..., list[KVCacheConfig]] = _utils.get_kv_cache_configs


def get_kv_cache_groups(
    vllm_config: VllmConfig, kv_cache_spec: dict[str, KVCacheSpec]
) -> list[KVCacheGroupSpec]:
    """Split the layers into groups."""
    if why := refusal.reason_to_plan(vllm_config, kv_cache_spec):
        note_refusal(why)
        return vllm_get_kv_cache_groups(vllm_config, kv_cache_spec)
    checkpoint_format = refusal.served_format(vllm_config, kv_cache_spec)
    groups = natural.make_groups(
        kv_cache_spec,
        checkpoint_format,
        pipeline_stages.stage_of(),
        vllm_config.parallel_config.decode_context_parallel_size,
        prefill_checkpoints.alignment(vllm_config, kv_cache_spec, checkpoint_format),
    )
    _utils._annotate_eagle_groups(
        vllm_config,
        kv_cache_spec,
        groups,
        use_trailing_layer_fallback=_utils._uses_trailing_mtp_layers(vllm_config),
    )
    _utils._warn_if_unannotated_eagle_mamba(vllm_config, groups)
    return groups


def get_kv_cache_config_from_groups(
    vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec], available_memory: int
) -> KVCacheConfig:
    """Place the groups in as many slabs as fit, or as the user asks for."""
    if not natural.are_natural(kv_cache_groups):
        return vllm_get_kv_cache_config_from_groups(vllm_config, kv_cache_groups, available_memory)
    num_slabs = available_memory // natural.layout_of(kv_cache_groups).slab_bytes
    num_slabs = _utils.may_override_num_blocks(vllm_config, num_slabs)
    return natural.make_config(vllm_config, kv_cache_groups, num_slabs)


def pool_bytes_per_block(vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec]) -> int:
    """Return the bytes of a slab."""
    if natural.are_natural(kv_cache_groups):
        return natural.layout_of(kv_cache_groups).slab_bytes
    return vllm_pool_bytes_per_block(vllm_config, kv_cache_groups)


def max_memory_usage_bytes_from_groups(
    vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec]
) -> int:
    """Return the bytes that one request of the maximum length needs."""
    if natural.are_natural(kv_cache_groups):
        return natural.needed_bytes(vllm_config, kv_cache_groups)
    return vllm_max_memory_usage_bytes_from_groups(vllm_config, kv_cache_groups)


FUNCTIONS = (
    (vllm_get_kv_cache_groups, get_kv_cache_groups),
    (vllm_get_kv_cache_config_from_groups, get_kv_cache_config_from_groups),
    (vllm_pool_bytes_per_block, pool_bytes_per_block),
    (vllm_max_memory_usage_bytes_from_groups, max_memory_usage_bytes_from_groups),
    (
        vllm_project_kv_cache_groups_to_worker,
        pipeline_stages.keeping_all(vllm_project_kv_cache_groups_to_worker),
    ),
    (vllm_get_kv_cache_configs, pipeline_stages.knowing_stages(vllm_get_kv_cache_configs)),
)
"""vLLM's functions and their replacements."""

METHODS: dict[str, Any] = {}
"""Replaced class methods of the platform, besides those that size blocks."""

logger = kv_cache_utils.logger
"""The logger of vLLM's planning."""


def stock_config(
    vllm_config: VllmConfig, specs: dict[str, KVCacheSpec], memory_bytes: int
) -> KVCacheConfig:
    """Return what vLLM plans for layers with ``memory_bytes``."""
    groups = vllm_get_kv_cache_groups(vllm_config, specs)
    return vllm_get_kv_cache_config_from_groups(vllm_config, groups, memory_bytes)
