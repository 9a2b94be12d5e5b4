"""The cost of computing a prefix again."""

import re
from dataclasses import dataclass

import numpy as np

from hybrid_blocks.model import Model
from hybrid_blocks.model.layer import Attention, FullAttention

_NAMED_PARAMETERS = re.compile(r"[-_]A?(\d+(?:\.\d+)?)B(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of computing ``n`` tokens from the start: ``linear * n + quadratic * n**2``.

    Attributes:
        linear: 2 a parameter that a token passes.
        quadratic: scores and values of full attention, causal: twice the sum over its layers of
            query heads times head size.
    """

    linear: float
    quadratic: float

    def of(self, num_tokens: int) -> float:
        """Return the FLOPs of ``num_tokens`` tokens."""
        return self.linear * num_tokens + self.quadratic * num_tokens**2


def flops_of(model: Model) -> Flops:
    """Estimate the FLOPs of a model.

    The parameters are the active ones that its name tells (27B, 35B-A3B). A name that tells none is
    taken for 12 * width**2 a layer, where the width is query heads times head size.
    """
    attention = [layer.cache for layer in model.layers if isinstance(layer.cache, Attention)]
    widths = [(cache.query_heads or cache.kv_heads) * cache.head_dim for cache in attention]
    named = _NAMED_PARAMETERS.findall(model.name)
    if named:
        parameters = float(named[-1]) * 1e9
    else:
        parameters = 12.0 * float(np.mean(widths or [4096])) ** 2 * model.num_layers
    full = sum(
        width
        for cache, width in zip(attention, widths, strict=True)
        if isinstance(cache, FullAttention)
    )
    return Flops(linear=2 * parameters, quadratic=2.0 * full)
