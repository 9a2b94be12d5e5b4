"""The cache of each layer of a model, as vLLM's workers report it."""

from typing import Any

from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
)

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import KERNEL_BLOCK_TOKENS, latent_block_tokens
from hybrid_blocks.model import Layer, Model, Rank
from hybrid_blocks.model.kind import kind_of
from hybrid_blocks.model.layer import Attention, LatentAttention, LatentIndex, State
from hybrid_blocks.model.rank import shard_or_replicate
from hybrid_blocks.vllm.specs import make

_HIDDEN_LAYERS, _HIDDEN_SIZE = 3, 1024
"""How many layers' hidden states are extracted, and their numbers. No answer depends on them."""


def attention_block(model: Model) -> int:
    """Return the tokens of a block of the attention kernels."""
    is_latent = any(layer.cache.kind == "mla" for layer in model.layers)
    return latent_block_tokens(model, Deployment()) if is_latent else KERNEL_BLOCK_TOKENS


def layer_specs(
    model: Model, rank: Rank, method: str | None, *, max_model_len: int, cache_mode: str
) -> dict[str, KVCacheSpec]:
    """Return vLLM's spec of each layer by its name: kernel blocks, and states for life.

    ``method`` is how tokens are drafted. A drafter's own model is not known. Level ``natural``
    plans these as they are; vLLM inflates the blocks of hybrid models first.
    """
    block = attention_block(model)
    longest = round_up(max_model_len + rank.num_speculative_tokens + 1, block)
    specs = {
        _name(layer): (
            _state(layer.cache, rank, longest, cache_mode)
            if isinstance(layer.cache, State)
            else _attention(layer, rank, block)
        )
        for layer in (model.layers + model.draft_layers if method == "mtp" else model.layers)
    }
    if method == "extract_hidden_states":
        specs["hidden_states"] = HiddenStateCacheSpec(
            block_size=block,
            num_kv_heads=_HIDDEN_LAYERS,
            head_size=_HIDDEN_SIZE,
            dtype=STR_DTYPE_TO_TORCH_DTYPE[rank.model_dtype],
        )
    return specs


def _name(layer: Layer) -> str:
    index = ".index" if isinstance(layer.cache, LatentIndex) else ""
    return f"layers.{layer.depth}.{layer.cache.kind}{index}{'.draft' if layer.draft else ''}"


def _state(cache: State, rank: Rank, block: int, cache_mode: str) -> KVCacheSpec:
    tensors = cache.tensors(rank)
    return MambaSpec(
        block_size=block,
        shapes=tuple(tensor.shape for tensor in tensors),
        dtypes=tuple(STR_DTYPE_TO_TORCH_DTYPE[tensor.dtype] for tensor in tensors),
        mamba_cache_mode=cache_mode,
        num_speculative_blocks=rank.num_speculative_tokens,
    )


def _attention(layer: Layer, rank: Rank, block: int) -> KVCacheSpec:
    cache: Any = layer.cache
    common: dict[str, Any] = {
        "block_size": block,
        "dtype": STR_DTYPE_TO_TORCH_DTYPE[rank.kv_dtype],
    }
    if isinstance(cache, LatentIndex):
        common["dtype"] = STR_DTYPE_TO_TORCH_DTYPE["fp8"]
        return MLAAttentionSpec(num_kv_heads=1, head_size=cache.token_bytes(rank), **common)
    if isinstance(cache, LatentAttention):
        return MLAAttentionSpec(num_kv_heads=1, head_size=cache.latent_dim, **common)
    attention: Attention = cache
    common["num_kv_heads"] = shard_or_replicate(attention.kv_heads, rank.tp, "KV heads")
    common["head_size"] = attention.head_dim
    kind = kind_of(cache)
    return make(kind.name, kind.window, **common) or FullAttentionSpec(**common)
