"""Layer families: what one layer keeps for a request, and how many bytes that takes on one rank."""

from hybrid_blocks.model.layer.attention import (
    Attention,
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    LatentIndex,
    SlidingWindow,
)
from hybrid_blocks.model.layer.state import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    ShortConv,
    State,
    StateFormat,
    StateTensor,
)

TokenCache = (
    FullAttention
    | LatentAttention
    | LatentIndex
    | SlidingWindow
    | ChunkedAttention
    | CrossAttention
)
"""Caches made of pages of tokens."""

StateCache = (
    GatedDeltaNet | Mamba1 | Mamba2 | KimiDeltaAttention | LightningAttention | RgLru | ShortConv
)
"""Caches made of one state."""

Cache = TokenCache | StateCache

__all__ = [
    "Attention",
    "Cache",
    "ChunkedAttention",
    "CrossAttention",
    "FullAttention",
    "GatedDeltaNet",
    "KimiDeltaAttention",
    "LatentAttention",
    "LatentIndex",
    "LightningAttention",
    "Mamba1",
    "Mamba2",
    "RgLru",
    "ShortConv",
    "SlidingWindow",
    "State",
    "StateCache",
    "StateFormat",
    "StateTensor",
    "TokenCache",
]
