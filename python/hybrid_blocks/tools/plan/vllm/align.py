"""How vLLM inflates the attention block of a hybrid model until it holds a recurrent state.

Follows ``Platform._align_hybrid_block_size`` in ``vllm/platforms/interface.py`` (0.33). Some
kernels write states from inside a forward, at places up to which a prompt is cached. vLLM calls
them internal prefill checkpoints; ``get_prefill_checkpoint_alignment`` of its layers says where.
"""

from math import lcm
from typing import Final

import msgspec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.geometry.card import capability
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import (
    FLASHINFER_TOKENS,
    KERNEL_BLOCK_TOKENS,
    LATENT_KERNEL_BLOCK_TOKENS,
    block_tokens,
)
from hybrid_blocks.model import Model, PlanError, Rank, formats
from hybrid_blocks.model.layer import (
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    Mamba2,
    State,
)

_FLASHKDA_TOKENS: Final = 16
_KERNEL_DIM: Final = 128
"""Numbers of a head that FlashKDA takes, and FlashInfer's GDN kernel on Blackwell."""

_OTHER_KERNELS: Final = ("bamba", "olmo_hybrid", "plamo2")
"""Models whose layers have kernels of their own, or that no release with these states serves."""


def block_size(model: Model, rank: Rank, deployment: Deployment) -> int:
    """Tokens of an attention block.

    Hybrid models: the smallest multiple of max(kernel block, ``--block-size``) whose page is not
    smaller than a state; others: ``--block-size`` or the backend's default. Where kernels write
    states from inside a forward, blocks are multiples of their alignment too.
    """
    latent = any(layer.cache.kind == LatentAttention.kind for layer in model.layers)
    packs_64 = rank.kv_dtype == "ultraquant_4bit"
    preferred = formats.ULTRAQUANT_BLOCK_TOKENS if packs_64 else block_tokens(model, deployment)
    asked = deployment.block_size or preferred
    if not model.is_hybrid:
        if formats.spares_boundary_layers(rank.kv_dtype):
            return _beside_wider_pages(model, rank, asked)
        return asked
    grain = max(asked, LATENT_KERNEL_BLOCK_TOKENS if latent else KERNEL_BLOCK_TOKENS)
    grain = lcm(grain, alignment(model, deployment) or 1)
    per_token = token_bytes(model, rank)
    inflated = grain * ceil_div(state_bytes(model, rank), grain * per_token)
    return max(asked, inflated)


def _beside_wider_pages(model: Model, rank: Rank, asked: int) -> int:
    """Tokens whose page covers a kernel's smallest block in the model's own format.

    Follows ``Platform._align_heterogeneous_kv_block_size``.
    """
    narrow = token_bytes(model, rank)
    if any(layer.cache.kind != FullAttention.kind for layer in model.layers):
        raise PlanError(
            f"{rank.kv_dtype} beside windows: vLLM keeps the first and last layers of {model.name} "
            "in the model's own format, and pages of windows in two formats are not modelled"
        )
    wide = token_bytes(model, msgspec.structs.replace(rank, kv_dtype=rank.model_dtype))
    return asked * ceil_div(KERNEL_BLOCK_TOKENS * wide, asked * narrow)


def state_bytes(model: Model, rank: Rank) -> int:
    """Bytes of the largest recurrent state of a layer."""
    states = (layer.cache for layer in model.layers if isinstance(layer.cache, State))
    return max(cache.state_bytes(rank) for cache in (*states, *model.convolutions))


def token_bytes(model: Model, rank: Rank) -> int:
    """Bytes of a token in the first attention layer: the model's own head count and size."""
    return next(
        layer.cache.token_bytes(rank)
        for layer in model.layers
        if not isinstance(layer.cache, State)
    )


def alignment(model: Model, deployment: Deployment) -> int | None:
    """Tokens between the places at which states can be written; None if a layer writes none."""
    if deployment.card is None or deployment.mamba_cache_mode != "align":
        return None
    if model.model_type in _OTHER_KERNELS:
        return None
    states = {layer.cache for layer in model.layers if isinstance(layer.cache, State)}
    found = [_of(cache, model, deployment) for cache in states]
    if not found or None in found:
        return None
    return lcm(*filter(None, found))


def _of(cache: State, model: Model, deployment: Deployment) -> int | None:
    release, major, minor = deployment.release, *capability(deployment.card)
    match cache:
        case Mamba2() if release >= (0, 32):
            return 1
        case GatedDeltaNet() if release >= (0, 33):
            is_hopper = (major, minor) == (9, 0)
            is_blackwell = major in (10, 12) and cache.key_dim == _KERNEL_DIM
            is_chosen = deployment.gdn_prefill_backend in ("auto", "flashinfer")
            return FLASHINFER_TOKENS if is_chosen and (is_hopper or is_blackwell) else None
        case KimiDeltaAttention(flash=True) if release >= (0, 31):
            is_chosen = deployment.kda_prefill_backend in ("auto", "flashkda")
            takes = cache.head_dim == _KERNEL_DIM and model.dtype == "bfloat16"
            return _FLASHKDA_TOKENS if is_chosen and takes and major in (9, 10, 12) else None
        case _:
            return None
