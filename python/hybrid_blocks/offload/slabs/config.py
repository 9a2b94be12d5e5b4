"""Chunks of an engine at level ``natural``: a block of attention, and a state at any hash block."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config

from hybrid_blocks.vllm.specs import is_state

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.config import OffloadingConfig


def is_slabbed(kv_cache_config: Any) -> bool:
    """Return whether blocks lie in slabs."""
    return bool(getattr(kv_cache_config, "blocks_per_slab", ()))


def drafters_of(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> frozenset[int]:
    """Return the groups that a drafter reads: a block's last entry depends on the next token."""
    drafter = vllm_config.speculative_config
    if drafter is None or not drafter.use_eagle_block_drop():
        return frozenset()
    groups = enumerate(kv_cache_config.kv_cache_groups)
    return frozenset(number for number, group in groups if group.is_eagle_group)


def offloading_config(
    vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig"
) -> "OffloadingConfig":
    """Return what vLLM tells a spec of an engine, with states of as many tokens as a digest.

    A state's own block is longer than any request; a request keeps one wherever it leaves a
    checkpoint.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    attention = min(spec.block_size for spec in specs if not is_state(spec))
    groups = [
        replace(group, kv_cache_spec=replace(group.kv_cache_spec, block_size=attention))
        if is_state(group.kv_cache_spec)
        else group
        for group in kv_cache_config.kv_cache_groups
    ]
    return build_offloading_config(vllm_config, replace(kv_cache_config, kv_cache_groups=groups))
