"""Layer families: what one layer keeps for a request, and how many bytes that takes on one rank."""

from hybrid_blocks.model.layer.attention import Attention
from hybrid_blocks.model.layer.chunked import ChunkedAttention
from hybrid_blocks.model.layer.cross import CrossAttention
from hybrid_blocks.model.layer.full import FullAttention
from hybrid_blocks.model.layer.gated_delta_net import GatedDeltaNet
from hybrid_blocks.model.layer.kda import KimiDeltaAttention
from hybrid_blocks.model.layer.latent_index import LatentIndex
from hybrid_blocks.model.layer.lightning import LightningAttention
from hybrid_blocks.model.layer.mamba1 import Mamba1
from hybrid_blocks.model.layer.mamba2 import Mamba2
from hybrid_blocks.model.layer.mla import LatentAttention
from hybrid_blocks.model.layer.rg_lru import RgLru
from hybrid_blocks.model.layer.short_conv import ShortConv
from hybrid_blocks.model.layer.sliding_window import SlidingWindow
from hybrid_blocks.model.layer.state import State, StateTensor

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
    "StateTensor",
    "TokenCache",
]
