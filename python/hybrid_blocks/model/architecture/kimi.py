"""Kimi delta attention beside latent attention: Kimi-Linear and Kimi-K3."""

from hybrid_blocks.model.architecture.common import by_depth, latent_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import KimiDeltaAttention
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``linear_attn_config.full_attn_layers`` counts layers from 1."""
    config.require("num_hidden_layers", "linear_attn_config", "kv_lora_rank", "qk_rope_head_dim")
    linear = config.section("linear_attn_config")
    linear.require("full_attn_layers", "num_heads", "head_dim", "short_conv_kernel_size")
    attention = latent_attention(config)
    kda = KimiDeltaAttention(
        heads=linear.positive("num_heads"),
        head_dim=linear.positive("head_dim"),
        conv_kernel=linear.positive("short_conv_kernel_size"),
    )
    attending = linear.integers("full_attn_layers") or ()
    return by_depth(
        attention if depth + 1 in attending else kda for depth in range(config.num_layers)
    )
