"""The structure of recurrent layers' states: what vLLM's own layers split by head, and how."""

from collections.abc import Callable
from math import prod
from typing import Any, Final, NamedTuple

import torch
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

from hybrid_blocks.offload.layout.parts import Part, heads_of_rank


class _Split(NamedTuple):
    """Inputs of the convolution, each with its heads and the channels of one, and the states."""

    inputs: list[tuple[int, int]]
    num_states: int | None


def _mamba1(layer: Any) -> _Split:
    return _Split([(layer.intermediate_size, 1)], layer.intermediate_size)


def _mamba2(layer: Any) -> _Split:
    # The layer itself counts a single group once for each rank.
    groups = (layer.norm.n_groups, layer.ssm_state_size)
    return _Split([(layer.num_heads, layer.head_dim), groups, groups], layer.num_heads)


def _gated_delta_net(layer: Any) -> _Split:
    keys = (layer.num_k_heads, layer.head_k_dim)
    return _Split([keys, keys, (layer.num_v_heads, layer.head_v_dim)], layer.num_v_heads)


def _kimi_delta(layer: Any) -> _Split:
    return _Split([(layer.num_heads, layer.head_dim)] * 3, layer.num_heads)


def _short_convolution(layer: Any) -> _Split:
    return _Split([(layer.conv_dim, 1)], None)


def _linear(layer: Any) -> _Split:
    return _Split([], layer.num_heads)


# By class and nothing derived from it: a class of a plugin may lay its states out in its own way.
_SPLITS: Final[dict[str, Callable[[Any], _Split]]] = {
    "MambaMixer": _mamba1,
    "MambaMixer2": _mamba2,
    "QwenGatedDeltaNetAttention": _gated_delta_net,
    "OlmoHybridGatedDeltaNetAttention": _gated_delta_net,
    "KimiGatedDeltaNetAttention": _kimi_delta,
    "Glm5NextLinearAttention": _kimi_delta,
    "BailingMoeV3KimiDeltaAttention": _kimi_delta,
    "ShortConv": _short_convolution,
    "BailingMoELinearAttention": _linear,
    "MiniMaxText01LinearAttention": _linear,
}


def state_parts(layer: Any, tp_size: int) -> list[Part] | None:
    """Return the parts of a block of a recurrent layer, ``None`` if they are not certain."""
    kind = type(layer)
    split_of = _SPLITS.get(kind.__name__)
    if split_of is None or not kind.__module__.startswith("vllm."):
        return None
    try:
        split = split_of(layer)
    except AttributeError:  # of another vLLM
        return None
    shapes, dtypes = list(layer.get_state_shape()), list(layer.get_state_dtype())
    if len(shapes) != bool(split.inputs) + (split.num_states is not None):
        return None  # with more than one convolution and one state, such as rings of inputs
    parts: list[Part] = []
    if split.inputs:
        convolution = _convolution(split.inputs, shapes.pop(0), dtypes.pop(0), tp_size)
        if convolution is None:
            return None
        parts += convolution
    if split.num_states is not None:
        (own, *rest), dtype = shapes[0], dtypes[0]
        if own != heads_of_rank(split.num_states, tp_size):
            return None
        head_bytes = prod(rest) * dtype.itemsize
        is_float32 = dtype == torch.float32
        parts.append(Part("recurrent", 1, split.num_states, head_bytes, is_float32))
    return parts


def _convolution(
    inputs: list[tuple[int, int]], shape: tuple[int, ...], dtype: torch.dtype, tp_size: int
) -> list[Part] | None:
    """Each input is split on its own; they lie one after another, in each row or as a whole."""
    own = [heads_of_rank(num_heads, tp_size) for num_heads, _ in inputs]
    by_channel = is_conv_state_dim_first()
    channels, length = shape if by_channel else reversed(shape)
    expected = sum((heads or 0) * size for heads, (_, size) in zip(own, inputs, strict=True))
    if None in own or channels != expected:
        return None
    width = length if by_channel else 1
    parts = [
        Part("convolution", 1, num_heads, size * width * dtype.itemsize)
        for num_heads, size in inputs
    ]
    return parts if by_channel else parts * length
