"""Latent attention in every layer: DeepSeek-V2, V3 and their kin."""

from hybrid_blocks.model.architecture.common import (
    by_depth,
    full_attention,
    latent_attention,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """One latent a token and layer; plain attention where no head has such dimensions."""
    config.require("num_hidden_layers", "num_attention_heads")
    dims = (config.get("qk_nope_head_dim"), config.get("qk_rope_head_dim"))
    attention = full_attention(config) if dims == (0, 0) else latent_attention(config)
    return by_depth(attention for _ in range(config.num_layers))


def read_longcat(config: Config) -> tuple[Layer, ...]:
    """LongCat-Flash: two attentions a layer, each with its own cache."""
    config.require("num_layers|num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim")
    attention = latent_attention(config)
    return tuple(Layer(depth, attention) for depth in range(config.num_layers) for _ in range(2))
