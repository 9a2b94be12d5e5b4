"""The planning of memory as vLLM 0.33 asks for it."""

from vllm.config import VllmConfig
from vllm.platforms.interface import Platform
from vllm.v1.core import kv_cache_planning
from vllm.v1.core.kv_cache_config_builder import KVCacheConfigBuilder
from vllm.v1.core.kv_cache_planning import DefaultKVCacheConfigBuilder
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

from hybrid_blocks.vllm.manager.kv_cache_manager import note_refusal
from hybrid_blocks.vllm.natural import groups as natural
from hybrid_blocks.vllm.natural import pipeline_stages, prefill_checkpoints, refusal

vllm_max_memory_usage_bytes_from_groups = kv_cache_planning._max_memory_usage_bytes_from_groups
vllm_project_kv_cache_groups_to_worker = kv_cache_planning._project_kv_cache_groups_to_worker
vllm_get_global_kv_cache_groups = kv_cache_planning.get_global_kv_cache_groups


class NaturalKVCacheConfigBuilder(DefaultKVCacheConfigBuilder):
    """Plans slabs, and what vLLM plans where level ``natural`` is refused."""

    def get_kv_cache_groups(
        self, vllm_config: VllmConfig, kv_cache_spec: dict[str, KVCacheSpec]
    ) -> list[KVCacheGroupSpec]:
        """Split the layers into groups."""
        if why := refusal.reason_to_plan(vllm_config, kv_cache_spec):
            note_refusal(why)
            return super().get_kv_cache_groups(vllm_config, kv_cache_spec)
        checkpoint_format = refusal.served_format(vllm_config, kv_cache_spec)
        return natural.make_groups(
            kv_cache_spec,
            checkpoint_format,
            pipeline_stages.stage_of(),
            vllm_config.parallel_config.decode_context_parallel_size,
            prefill_checkpoints.alignment(vllm_config, kv_cache_spec, checkpoint_format),
        )

    def get_kv_cache_config_from_groups(
        self, vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec], num_blocks: int
    ) -> KVCacheConfig:
        """Place the groups in ``num_blocks`` slabs."""
        if natural.are_natural(kv_cache_groups):
            return natural.make_config(vllm_config, kv_cache_groups, num_blocks)
        return super().get_kv_cache_config_from_groups(vllm_config, kv_cache_groups, num_blocks)

    def _get_pool_bytes_per_block(
        self, vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec]
    ) -> int | None:
        """Return the bytes of a slab."""
        if natural.are_natural(kv_cache_groups):
            return natural.layout_of(kv_cache_groups).slab_bytes
        return super()._get_pool_bytes_per_block(vllm_config, kv_cache_groups)


def max_memory_usage_bytes_from_groups(
    builder: KVCacheConfigBuilder, vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec]
) -> int:
    """Return the bytes that one request of the maximum length needs."""
    if natural.are_natural(kv_cache_groups):
        return natural.needed_bytes(vllm_config, kv_cache_groups)
    return vllm_max_memory_usage_bytes_from_groups(builder, vllm_config, kv_cache_groups)


def builder_class(cls: type[Platform], vllm_config: VllmConfig) -> str:  # noqa: ARG001
    """Name the builder, as vLLM asks its platform to."""
    return f"{NaturalKVCacheConfigBuilder.__module__}.{NaturalKVCacheConfigBuilder.__qualname__}"


FUNCTIONS = (
    (vllm_max_memory_usage_bytes_from_groups, max_memory_usage_bytes_from_groups),
    (
        vllm_project_kv_cache_groups_to_worker,
        pipeline_stages.keeping_all(vllm_project_kv_cache_groups_to_worker),
    ),
    (
        vllm_get_global_kv_cache_groups,
        pipeline_stages.knowing_stages(vllm_get_global_kv_cache_groups),
    ),
)
"""vLLM's functions and their replacements."""

METHODS = {"get_kv_cache_config_builder_cls": builder_class}
"""Replaced class methods of the platform."""

logger = kv_cache_planning.logger
"""The logger of vLLM's planning."""


def stock_config(
    vllm_config: VllmConfig, specs: dict[str, KVCacheSpec], memory_bytes: int
) -> KVCacheConfig:
    """Return what vLLM plans for layers with ``memory_bytes``."""
    builder = DefaultKVCacheConfigBuilder()
    groups = builder.get_kv_cache_groups(vllm_config, specs)
    block_bytes = kv_cache_planning._pool_bytes_per_block_from_builder(builder, vllm_config, groups)
    return builder.get_kv_cache_config_from_groups(vllm_config, groups, memory_bytes // block_bytes)
