"""Kimi delta attention beside latent attention: Kimi-Linear and Kimi-K3."""

from hybrid_blocks.model.architecture.common import (
    by_depth,
    choose,
    full_attention,
    latent_attention,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, KimiDeltaAttention
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
        flash=linear.flag("use_full_rank_gate") and "gate_lower_bound" in linear,
    )
    attending = linear.integers("full_attn_layers") or ()
    return by_depth(
        attention if depth + 1 in attending else kda for depth in range(config.num_layers)
    )


def read_alice(config: Config) -> tuple[Layer, ...]:
    """AliceAI: Kimi delta attention beside plain attention, by ``layer_types``."""
    config.require("layer_types", "linear_num_key_heads", "linear_key_head_dim")
    kda = KimiDeltaAttention(
        heads=config.positive("linear_num_key_heads"),
        head_dim=config.positive("linear_key_head_dim"),
        conv_kernel=config.positive("linear_conv_kernel_dim"),
    )
    known: dict[str, Cache | None] = {
        "full_attention": full_attention(config),
        "linear_attention": kda,
    }
    return choose(config, config.strings("layer_types") or (), "layer_types", known)
