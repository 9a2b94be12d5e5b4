"""The structure of vLLM's pages, as far as it is certain. Other pages keep a layout by rank."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    SlidingWindowSpec,
)

from hybrid_blocks.offload.layout.parts import Part, Structure, heads_of_rank, opaque
from hybrid_blocks.offload.layout.state_parts import state_parts
from hybrid_blocks.vllm.specs import is_state

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_offload.base import CanonicalKVCacheRef

# Backends that read keys and values of a head where the shape of the cache says that they lie.
_BACKENDS: Final = ("CPU_ATTN", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")
_SPECS: Final = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)
_QUANTIZATION: Final = (KVQuantMode.NONE, KVQuantMode.FP8_PER_TENSOR)
# Within a page tokens lie outside heads, or heads outside tokens.
_BY_TOKEN: Final = ("LBNHC", "BLNHC")
_BY_HEAD: Final = ("LBHNC", "BLHNC")


def structure_of(
    config: "VllmConfig",
    names: Sequence[str],
    refs: "Sequence[CanonicalKVCacheRef]",
    tokens: int,
    layout: str | None,
) -> Structure:
    """Return the structure of the chunks of a group with the layers ``names``.

    ``refs`` are what vLLM's connector copies of a block, ``tokens`` those of a block.
    """
    num_ranks = config.parallel_config.world_size
    tp_size = config.parallel_config.tensor_parallel_size
    if len(refs) != len(names) or num_ranks != tp_size:  # blocks of all layers in one piece
        whole = opaque(sum(ref.page_size_bytes for ref in refs), num_ranks)
        return Structure(kinds=[[whole]], layers=[0], depths=[])
    layers: Mapping[str, Any] = config.compilation_config.static_forward_context
    described = []
    for name, ref in zip(names, refs, strict=True):
        parts = _parts_of(config, layers.get(name), ref.page_size_bytes, tokens, layout)
        if parts is None or _rank_bytes(parts, tp_size) != ref.page_size_bytes:
            parts = [opaque(ref.page_size_bytes, num_ranks)]
        described.append((name, parts))
    return Structure.of(described)


def _rank_bytes(parts: Sequence[Part], tp_size: int) -> int | None:
    sizes = [part.rank_bytes(tp_size) for part in parts]
    return None if None in sizes else sum(filter(None, sizes))


def _parts_of(
    config: "VllmConfig", layer: Any, page_bytes: int, tokens: int, layout: str | None
) -> list[Part] | None:
    if layer is None:
        return None
    spec = layer.get_kv_cache_spec(config)
    is_replicated = isinstance(spec, AttentionSpec) and spec.max_tp_shards == 1
    is_replicated |= is_state(spec) and spec.tp_replicated
    if is_replicated:
        return [Part("replicated", 1, 1, page_bytes)]
    tp_size = config.parallel_config.tensor_parallel_size
    if is_state(spec):
        return state_parts(layer, tp_size)
    if not isinstance(spec, AttentionSpec) or not _is_plain(layer, spec):
        return None
    num_heads = _num_heads(config, spec.num_kv_heads, tp_size)
    if num_heads is None:
        return None
    return _attention_parts(layer.kv_cache, spec, num_heads, tokens, layout)


def _is_plain(layer: Any, spec: AttentionSpec) -> bool:
    """Whether a page holds keys and values of each head and token, and nothing else."""
    return (
        type(spec) in _SPECS
        and spec.kv_quant_mode in _QUANTIZATION
        and spec.num_head_slots is None
        and spec.state_content_bytes is None
        and spec.tokens_per_state == 1
        and layer.get_attn_backend().get_name() in _BACKENDS
        and isinstance(layer.kv_cache, torch.Tensor)
    )


def _num_heads(config: "VllmConfig", own: int, tp_size: int) -> int | None:
    """Heads of all ranks, where each has ``own``; ``None`` if it is not certain."""
    if own > 1 or tp_size == 1:
        return own * tp_size
    # One head a rank: it may be a copy of a neighbour's.
    num_heads = config.model_config.get_total_num_kv_heads()
    is_one_each = num_heads <= tp_size and heads_of_rank(num_heads, tp_size) == 1
    return num_heads if is_one_each else None


def _attention_parts(
    cache: torch.Tensor, spec: AttentionSpec, num_heads: int, tokens: int, layout: str | None
) -> list[Part] | None:
    """Parts of pages that may consist of several of the backend's own blocks."""
    if cache.dim() != 4:
        return None
    _, own, kernel_tokens, content = cache.shape
    cell = content * cache.element_size()
    is_expected = own == spec.num_kv_heads and cell == spec.state_content_size_bytes
    if not is_expected or tokens % kernel_tokens or cache.stride(3) != 1:
        return None
    # The strides of a dimension of one element say nothing.
    strides = {1: (own, cache.stride(1)), 2: (kernel_tokens, cache.stride(2))}
    if layout in _BY_HEAD:
        expected = {1: kernel_tokens * content, 2: content}
        part = Part("key_value", tokens // kernel_tokens, num_heads, kernel_tokens * cell)
    elif layout in _BY_TOKEN:
        expected = {1: content, 2: own * content}
        part = Part("key_value", tokens, num_heads, cell)
    else:
        return None
    if any(size > 1 and stride != expected[dim] for dim, (size, stride) in strides.items()):
        return None
    return [part]
