"""The capacity that an engine logs and publishes, next to the one that vLLM would log."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import lcm
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
)

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.geometry.kernel_blocks import FLASHINFER_TOKENS, LATENT_KERNEL_BLOCK_TOKENS
from hybrid_blocks.units import human
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.manager.kv_cache_manager import note_refusal
from hybrid_blocks.vllm.natural import planning
from hybrid_blocks.vllm.natural.groups import arena_plan
from hybrid_blocks.vllm.specs import is_state

CPU_BLOCK_TOKENS = 128
"""vLLM's block on a CPU where ``--block-size`` does not say."""


def vllms_config(
    vllm_config: VllmConfig, groups: Iterable[KVCacheGroupSpec], memory_bytes: int
) -> KVCacheConfig | None:
    """Return vLLM's own configuration for layers of level ``natural``; ``None`` if it has none.

    The plan fills ``memory_bytes``, whatever number of blocks the user set.
    """
    specs = {
        name: getattr(group, "reported_spec", None) or group.kv_cache_spec
        for group in groups
        for name in group.layer_names
    }
    try:
        with _quiet(), _without_override(vllm_config):
            planned: KVCacheConfig = planning().stock_config(
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
    states: list[Any] = [spec for spec in specs.values() if is_state(spec)]
    if not states:
        return dict(specs)
    align = states[0].mamba_cache_mode == "align"
    first: Any = next((spec for spec in specs.values() if not is_state(spec)), None)
    if first is None:
        own = vllm_config.cache_config.block_size
        return {name: replace(it, block_size=own) if align else it for name, it in specs.items()}
    per_token, block = first.page_size_bytes // first.block_size, first.block_size
    if current_platform.is_cpu() and not vllm_config.cache_config.user_specified_block_size:
        block = CPU_BLOCK_TOKENS
    if isinstance(first, MLAAttentionSpec):
        block = max(block, LATENT_KERNEL_BLOCK_TOKENS)
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
        if is_state(spec)
        else spec.copy_with_new_block_size(inflated)
        for name, spec in specs.items()
    }


def _keeps_to_grid(spec: Any) -> bool:
    """Whether a layer writes states from inside a forward at borders of its blocks alone.

    FlashInfer's GDN kernel does. Other kernels name places that all blocks end at.
    """
    return bool(spec.prefill_checkpoint_alignment == spec.block_size)


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
    logger = planning().logger
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


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
        config = vllms_config(vllm_config, kv_cache_config.kv_cache_groups, plan.arena_bytes)
    if config is not None:
        runs = vllm_get_max_concurrency_for_kv_cache_config(vllm_config, config)
        theirs = config.num_blocks, runs
    log_plan(vllm_config, plan, theirs)
    return capacity.concurrency(plan, vllm_config.model_config.max_model_len)


def log_plan(vllm_config: VllmConfig, plan: ArenaPlan, vllm: tuple[int, float] | None) -> None:
    """Say what the bytes hold, and what vLLM would log of them: its blocks and concurrency."""
    note_refusal(None)
    length = vllm_config.model_config.max_model_len
    theirs = f"{vllm[1]:.2f}x in {vllm[0]:,} blocks" if vllm else "nothing to compare"
    logger.info_once(
        "hybrid_blocks: %s hold %.2fx requests of %s tokens in %s slabs of %s; vLLM would log %s",
        human(plan.arena_bytes),
        capacity.concurrency(plan, length),
        f"{length:,}",
        f"{plan.num_slabs:,}",
        human(plan.slab_bytes),
        theirs,
    )
    for group in plan.groups:
        slots = plan.num_slots(group)
        if slots is not None:
            slots //= vllm_config.parallel_config.decode_context_parallel_size
        logger.info_once(
            "hybrid_blocks: group %s: %s layers, pool %s, %s blocks a slab%s",
            group.name,
            len(group.page_bytes),
            group.pool,
            f"{group.blocks_per_slab:,}",
            "" if slots is None else f", {slots:,} token slots",
        )
        if group.kept_pool is not None:
            logger.info_once(
                "hybrid_blocks: checkpoints of group %s: pool %s, %s a slab",
                group.name,
                group.kept_pool,
                group.kept_per_slab,
            )
    limit = vllm_config.scheduler_config.max_num_seqs
    if capacity.state_slots(plan) is not None and limit > plan.num_slabs:
        logger.warning_once(
            "hybrid_blocks: max_num_seqs %s exceeds the %s slabs, and vLLM refuses to capture full "
            "CUDA graphs then; set --max-num-seqs %s, give more memory, or HYBRID_BLOCKS=manager",
            f"{limit:,}",
            f"{plan.num_slabs:,}",
            plan.num_slabs,
        )
