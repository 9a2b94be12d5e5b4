"""How vLLM inflates the attention block of a hybrid model until it holds a recurrent state.

Follows ``Platform._align_hybrid_block_size`` in ``vllm/platforms/interface.py`` (0.33).
"""

from math import lcm

import msgspec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import (
    KERNEL_BLOCK_TOKENS,
    LATENT_KERNEL_BLOCK_TOKENS,
    latent_block_tokens,
)
from hybrid_blocks.model import Model, PlanError, Rank, formats
from hybrid_blocks.model.layer import State
from hybrid_blocks.tools.plan.vllm import prefill_checkpoint


def block_size(model: Model, rank: Rank, deployment: Deployment) -> int:
    """Tokens of an attention block.

    Hybrid models: the smallest multiple of max(kernel block, ``--block-size``) whose page is not
    smaller than a state; others: ``--block-size`` or the backend's default. Where kernels write
    states from inside a forward, blocks are multiples of their alignment too.
    """
    latent = any(layer.cache.kind == "mla" for layer in model.layers)
    packs_64 = rank.kv_dtype == "ultraquant_4bit"
    preferred = formats.ULTRAQUANT_BLOCK_TOKENS if packs_64 else KERNEL_BLOCK_TOKENS
    asked = deployment.block_size or preferred
    if not model.is_hybrid:
        if formats.spares_boundary_layers(rank.kv_dtype):
            return _beside_wider_pages(model, rank, asked)
        if latent:
            preferred = latent_block_tokens(model, deployment)
        return deployment.block_size or preferred
    grain = max(asked, LATENT_KERNEL_BLOCK_TOKENS if latent else KERNEL_BLOCK_TOKENS)
    grain = lcm(grain, prefill_checkpoint.alignment(model, deployment) or 1)
    per_token = token_bytes(model, rank)
    inflated = grain * ceil_div(state_bytes(model, rank), grain * per_token)
    return max(asked, inflated)


def _beside_wider_pages(model: Model, rank: Rank, asked: int) -> int:
    """Tokens whose page covers a kernel's smallest block in the model's own format.

    Follows ``Platform._align_heterogeneous_kv_block_size``.

    Raises:
        PlanError: windows beside layers of another format are not modelled.

    """
    narrow = token_bytes(model, rank)
    if any(layer.cache.kind != "full" for layer in model.layers):
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
