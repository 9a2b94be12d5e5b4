"""The engines that level ``natural`` refuses, which run at level ``manager``, and their reasons."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
)

from hybrid_blocks.connector import Connector
from hybrid_blocks.model.layer import RUNNING, StateFormat
from hybrid_blocks.reasons import first, sentence
from hybrid_blocks.vllm.level import CHECKPOINTS, Level, checkpoint_format, worker_grant
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.natural.layers import kept_bytes, zeroes_single_blocks
from hybrid_blocks.vllm.specs import AT_NATURAL, is_state

STRIDED = ("CPU_ATTN",)
"""Backends that declare no layout with blocks outside layers, and read such blocks all the same."""

DENSE_ONLY = 1
"""``block_stride_alignment`` of layers whose kernels read blocks as one dense run.

To vLLM it says what None says. Workers know the backends and the engine core knows the layers'
specs, so this is how the core learns of them.
"""


def reason(vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> str | None:
    """Return why an engine is refused, or ``None`` if it is not.

    ``specs`` are those of the layers of all pipeline stages, as workers report them. Workers
    ask before they size blocks, the engine core before it plans. Both get the same answer, as it
    depends on no size that follows from it.
    """
    return _of_config(vllm_config) or _of_layers(vllm_config, specs)


def mark(backend: type[AttentionBackend], spec: AttentionSpec) -> AttentionSpec:
    """Mark the spec of a layer whose kernels cannot read blocks of several layers side by side."""
    if backend.is_mla() or backend.get_name() in STRIDED:
        return spec
    layouts = backend.supported_kv_cache_layouts()
    if layouts is None or any(layout.is_block_outermost for layout in layouts):
        return spec
    return replace(spec, block_stride_alignment=DENSE_ONLY)


def _of_config(config: VllmConfig) -> str | None:
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    observability = getattr(config, "observability_config", None)
    is_dcp = parallel.decode_context_parallel_size > 1
    is_known = current_platform.is_cuda() or current_platform.is_cpu()
    split = {
        # Workers tell the engine core alone that these hold whole blocks on each rank.
        "block_drafter_with_dcp": is_dcp
        and getattr(config.speculative_config, "method", None) in ("dflash", "dspark"),
        "pcp": parallel.prefill_context_parallel_size > 1,
    }
    options = {
        "aux_outputs": config.aux_output_config.enabled,
        "hisparse": config.attention_config.hisparse_config is not None,
        "replay_ssm": cache.use_replayssm,
        "residency_metrics": getattr(observability, "kv_cache_metrics", False),
        "skipped_quantization": cache.kv_cache_dtype_skip_layers,
        "no_hybrid_manager": config.scheduler_config.disable_hybrid_kv_cache_manager,
        "own_grouping": getattr(model, "supports_kv_cache_grouping", False),
        "platform": not is_known or _plans_for_itself(),
    }
    why = first(split) or _of_connector(config)
    return why or first(options, device=current_platform.device_name)


def _of_connector(config: VllmConfig) -> str | None:
    """Return why the KV connector is refused, None if it is not.

    The reason follows from the configuration alone, so that workers and the engine core agree.
    """
    transfer: Any = config.kv_transfer_config
    if transfer is None:
        return None
    connector = Connector(
        getattr(transfer, "kv_connector", None),
        getattr(transfer, "kv_connector_module_path", None),
        getattr(transfer, "kv_connector_extra_config", None) or {},
    )
    return connector.refused(
        os.environ,
        drafts=config.speculative_config is not None,
        pp=config.parallel_config.pipeline_parallel_size,
        dcp=config.parallel_config.decode_context_parallel_size,
    )


def _plans_for_itself() -> bool:
    """Whether the platform names a builder of its own; vLLM before 0.33 knows no builders."""
    name = "get_kv_cache_config_builder_cls"
    own = next((cls for cls in type(current_platform).__mro__ if name in cls.__dict__), Platform)
    return own is not Platform


def _of_layers(config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> str | None:
    attention: list[Any] = [spec for spec in specs.values() if not is_state(spec)]
    if not attention:
        return sentence("no_attention")
    for name, spec in specs.items():
        if why := _of_layer(spec):
            return f"{why} ({name})"
    states = [spec for spec in specs.values() if is_state(spec)]
    dcp = config.parallel_config.decode_context_parallel_size
    is_full = all(isinstance(spec, FullAttentionSpec) for spec in attention)
    sizes = sorted({resolve_dcp_kv_block_size(spec, dcp) for spec in attention})
    full = {spec for spec in attention if isinstance(spec, FullAttentionSpec)}
    # Attention takes a block again without clearing it. The old content must be numbers in the
    # format that is read, so that a weight of 0 hides them.
    formats = {(spec.dtype, spec.kv_quant_mode) for spec in attention}
    # The runner clears blocks in all layers of full attention, and in no others.
    clears_alike = bool(states) and zeroes_single_blocks(config)
    unit = config.cache_config.prefix_match_unit
    alike = {
        "windows_with_dcp": dcp > 1 and not is_full,
        "block_sizes": len(sizes) > 1,
        "number_formats": len(formats) > 1,
        "state_shapes": len({spec.shapes for spec in states}) > 1,
    }
    with_states = {
        "windows_on_cpu": clears_alike and not is_full,
        "full_kinds_on_cpu": clears_alike and len(full) > 1,
        "prefix_match_unit": bool(states) and unit not in (None, sizes[0]),
    }
    why = first(alike, sizes=sizes, count=len(formats))
    return why or first(with_states, count=len(full), unit=unit, block=sizes[0])


def _of_layer(spec: Any) -> str | None:
    if type(spec) not in AT_NATURAL:
        return sentence("cache_kind", kind=type(spec).__name__.removesuffix("Spec"))
    if is_state(spec):
        known = spec.mamba_cache_mode in ("none", "align")
        return None if known else sentence("mamba_mode", mode=spec.mamba_cache_mode)
    latent = type(spec) is MLAAttentionSpec
    refused = {
        "dense_run": spec.block_stride_alignment == DENSE_ONLY,
        "padded_pages": spec.page_size_padded is not None,
        "compressed": spec.tokens_per_state != 1,
        "sparse_latent": latent
        # vLLM before 0.33 has no `topk_buffer_width`.
        and (spec.model_version or getattr(spec, "topk_buffer_width", None)) is not None,
    }
    return first(refused)


def reason_to_plan(vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> str | None:
    """Return why the engine core must not plan slabs, or ``None`` if it may.

    Besides `reason`: workers must have sized states as `size_blocks` in ``platform`` does, so that
    a state keeps its one column for a request's life.
    """
    if why := reason(vllm_config, specs):
        return why
    length = vllm_config.model_config.max_model_len
    for spec in specs.values():
        if not is_state(spec):
            continue
        if spec.page_size_padded is not None:
            return sentence("padded_states")
        if spec.mamba_cache_mode == "align" and spec.block_size <= length:
            return sentence("short_state_blocks", block=spec.block_size, length=length)
    return None


def served_format(vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> StateFormat:
    """Return the format to plan for. The log says why it is not the user's.

    The engine core alone asks. Workers get it with the configuration.
    """
    asked = checkpoint_format()
    if asked == RUNNING:
        return asked
    if why := format_reason(vllm_config, specs, asked):
        logger.warning_once(
            "hybrid_blocks: %s has format=%s, but checkpoints stay as running states are: %s",
            CHECKPOINTS,
            asked,
            why,
        )
        return RUNNING
    return asked


def format_reason(
    vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec], asked: StateFormat
) -> str | None:
    """Return why checkpoints keep the format of running states, ``None`` if they need not."""
    if not vllm_config.cache_config.enable_prefix_caching:
        return sentence("no_prefix_cache")
    states = [spec for spec in specs.values() if is_state(spec)]
    if all(kept_bytes(spec, asked) == spec.page_size_bytes for spec in states):
        return sentence("nothing_smaller")
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return sentence("pp_with_format")
    if vllm_config.kv_transfer_config is not None:
        return sentence("connector_with_format")
    if why := worker_grant(Level.NATURAL).reason:
        return sentence("vllms_copies", why=why)
    return None
