"""The plan that vLLM would have made of the same bytes, for comparison."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import lcm
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
)

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.geometry.kernel_blocks import FLASHINFER_TOKENS, LATENT_KERNEL_BLOCK_TOKENS
from hybrid_blocks.vllm import releases

CPU_BLOCK_TOKENS = 128
"""vLLM's block on a CPU where ``--block-size`` does not say."""


def config(
    vllm_config: VllmConfig, groups: Iterable[KVCacheGroupSpec], memory_bytes: int
) -> KVCacheConfig | None:
    """Return vLLM's own configuration for layers of level ``natural``; ``None`` if it has none.

    It fills ``memory_bytes``, whatever number of blocks the user set.
    """
    specs = {
        name: getattr(group, "reported_spec", None) or group.kv_cache_spec
        for group in groups
        for name in group.layer_names
    }
    try:
        with _quiet(), _without_override(vllm_config):
            planned: KVCacheConfig = releases.installed.planning().stock_config(
                vllm_config, with_stock_blocks(vllm_config, specs), memory_bytes
            )
    except (ValueError, AssertionError, NotImplementedError):
        return None
    return planned


def with_stock_blocks(
    vllm_config: VllmConfig, specs: dict[str, KVCacheSpec]
) -> dict[str, KVCacheSpec]:
    """Return the specs as vLLM's workers report them: blocks that hold a state, padded states.

    Follows ``Platform._align_hybrid_block_size``.
    """
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    if not states:
        return dict(specs)
    first: Any = next(spec for spec in specs.values() if not isinstance(spec, MambaSpec))
    per_token, block = first.page_size_bytes // first.block_size, first.block_size
    if current_platform.is_cpu() and not vllm_config.cache_config.user_specified_block_size:
        block = CPU_BLOCK_TOKENS
    if isinstance(first, MLAAttentionSpec):
        block = max(block, LATENT_KERNEL_BLOCK_TOKENS)
    align = states[0].mamba_cache_mode == "align"
    if align and all(map(_keeps_to_grid, states)):
        block = lcm(block, FLASHINFER_TOKENS)
    inflated = block * ceil_div(max(s.page_size_bytes for s in states), block * per_token)
    length = vllm_config.model_config.max_model_len
    return {
        name: replace(
            spec,
            block_size=inflated if align else length,
            page_size_padded=inflated * per_token,
            **({"prefill_checkpoint_alignment": inflated} if _keeps_to_grid(spec) else {}),
        )
        if isinstance(spec, MambaSpec)
        else spec.copy_with_new_block_size(inflated)
        for name, spec in specs.items()
    }


def _keeps_to_grid(spec: MambaSpec) -> bool:
    """Whether a layer writes states from inside a forward at borders of its blocks alone.

    FlashInfer's GDN kernel does. Other kernels name places that all blocks end at.
    """
    return spec.prefill_checkpoint_alignment == spec.block_size


@contextmanager
def _without_override(vllm_config: VllmConfig) -> Iterator[None]:
    """Let vLLM plan for the bytes: an override counts slabs, and vLLM would take it for blocks."""
    cache = vllm_config.cache_config
    override, cache.num_gpu_blocks_override = cache.num_gpu_blocks_override, None
    try:
        yield
    finally:
        cache.num_gpu_blocks_override = override


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what vLLM says of a plan that is not carried out from the log."""
    logger = releases.installed.planning().logger
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
