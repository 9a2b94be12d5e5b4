"""Bytes that SGLang keeps of a state, and of a token, on one rank."""

from math import prod
from typing import Final

import msgspec

from hybrid_blocks.model import Model, PlanError, Rank, dtype
from hybrid_blocks.model.layer import (
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    SlidingWindow,
    State,
)
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.sglang.strategy import SERVED, WINDOWS_APART

_FORMATS: Final = frozenset({"bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"})
_TOKENS: Final = (FullAttention, LatentAttention, SlidingWindow, ChunkedAttention)


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes over all layers of a rank; ``window`` is None where windows have no pool."""

    state_bytes: int
    token_bytes: int
    window_bytes: int
    window: int | None


def costs(model: Model, deployment: Deployment) -> Costs:
    """Return what SGLang's pools count for a model.

    Raises:
        PlanError: the model, or an option, is not planned for SGLang.

    """
    _check(model, deployment)
    apart = model.model_type in WINDOWS_APART
    rank = Rank(
        tp=deployment.tp, kv_dtype=deployment.kv_dtype(model), rotary_share=model.rotary_share
    )
    state_bytes = token_bytes = window_bytes = layers = 0
    window = None
    for layer in model.layers:
        cache = layer.cache
        if isinstance(cache, State):
            state_bytes += _state_bytes(cache, rank, deployment)
        elif isinstance(cache, SlidingWindow | ChunkedAttention) and apart:
            window_bytes += cache.token_bytes(rank)
            window = cache.window if isinstance(cache, SlidingWindow) else cache.chunk
        elif isinstance(cache, _TOKENS):
            token_bytes += cache.token_bytes(rank)
            layers += 1
    if deployment.num_speculative_tokens and layers:
        token_bytes += int(token_bytes * len(model.draft_layers) / layers)
    return Costs(
        state_bytes=state_bytes, token_bytes=token_bytes, window_bytes=window_bytes, window=window
    )


def _state_bytes(state: State, rank: Rank, deployment: Deployment) -> int:
    """Bytes of one state: convolutions in bfloat16, the rest in float32 by default."""
    asked = deployment.mamba_ssm_dtype
    if asked == "auto":
        asked = state.ssm_dtype or "float32"
    sizes = {"conv": dtype.size("bfloat16"), "recurrent": dtype.size(asked)}
    return sum(prod(tensor.shape) * sizes[tensor.role] for tensor in state.tensors(rank))


def _check(model: Model, deployment: Deployment) -> None:
    if model.model_type not in SERVED or model.index is not None:
        raise PlanError(f"{model.model_type} models are not planned for SGLang")
    if len({layer.depth for layer in model.layers}) < model.num_layers and (
        model.model_type in WINDOWS_APART
    ):
        raise PlanError("layers that share another layer's cache are not planned for SGLang")
    if deployment.pp > 1:
        raise PlanError("pipeline stages are not planned for SGLang")
    if (kv_dtype := deployment.kv_dtype(model)) not in _FORMATS:
        raise PlanError(f"--kv-cache-dtype {kv_dtype} is not planned for SGLang")
