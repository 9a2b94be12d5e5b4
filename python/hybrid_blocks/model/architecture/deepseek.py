"""Latent attention in every layer: DeepSeek-V2, V3, V3.2 and their kin."""

import msgspec

from hybrid_blocks.model.architecture.common import (
    by_depth,
    full_attention,
    latent_attention,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import LatentIndex
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """One latent a token and layer; plain attention where no head has such dimensions."""
    if "index_topk" in config:
        return read_sparse(config)
    config.require("num_hidden_layers", "num_attention_heads")
    dims = (config.get("qk_nope_head_dim"), config.get("qk_rope_head_dim"))
    attention = full_attention(config) if dims == (0, 0) else latent_attention(config)
    return by_depth(attention for _ in range(config.num_layers))


def read_sparse(config: Config) -> tuple[Layer, ...]:
    """DeepSeek-V3.2: an index beside each latent, but where a layer takes what another chose."""
    config.require("num_hidden_layers", "index_head_dim")
    follower = msgspec.structs.replace(latent_attention(config), sparse=True)
    leader = msgspec.structs.replace(follower, leads=True)
    index = LatentIndex(head_dim=config.positive("index_head_dim"))
    return tuple(
        Layer(depth, cache)
        for depth in range(config.num_layers)
        for cache in ((leader, index) if _leads(config, depth) else (follower,))
    )


def _leads(config: Config, depth: int) -> bool:
    """Whether a layer has an index: a letter says so, or the distance from the first ones."""
    letters = config.get("index_topk_pattern")
    if isinstance(letters, str | list):
        return depth >= len(letters) or letters[depth] != "S"
    behind = depth + 1 - config.integer("index_skip_topk_offset", default=2)
    return max(behind, 0) % config.positive("index_topk_freq", default=1) == 0


def read_longcat(config: Config) -> tuple[Layer, ...]:
    """LongCat-Flash: two attentions a layer, each with its own cache."""
    config.require("num_layers|num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim")
    attention = latent_attention(config)
    return tuple(Layer(depth, attention) for depth in range(config.num_layers) for _ in range(2))
