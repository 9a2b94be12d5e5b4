"""Latent attention in every layer: DeepSeek-V2, V3 and their kin."""

from hybrid_blocks.model.architecture.common import by_depth, latent_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """One latent a token and layer."""
    config.require("num_hidden_layers", "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim")
    attention = latent_attention(config)
    return by_depth(attention for _ in range(config.num_layers))
