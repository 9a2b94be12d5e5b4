"""Ling and Ring hybrids: groups of linear layers, each closed by latent (or plain) attention."""

from hybrid_blocks.model.architecture.common import by_depth, full_attention, latent_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, KimiDeltaAttention, LightningAttention
from hybrid_blocks.model.model import Layer


def read_v3(config: Config) -> tuple[Layer, ...]:
    """Ling-3: Kimi delta attention; all layers of a last group that is not full attend."""
    config.require("num_attention_heads", "short_conv_kernel_size")
    kda = KimiDeltaAttention(
        heads=config.query_heads,
        head_dim=config.head_dim,
        conv_kernel=config.positive("short_conv_kernel_size"),
    )
    config.require("layer_group_size")
    whole = config.num_layers // config.positive("layer_group_size")
    return _grouped(config, kda, whole * config.positive("layer_group_size"))


def read_v2_5(config: Config) -> tuple[Layer, ...]:
    """Ling-2.5 and Ring-2.5: lightning attention."""
    config.require("num_attention_heads")
    linear = LightningAttention(heads=config.query_heads, head_dim=config.head_dim)
    return _grouped(config, linear, config.num_layers)


def _grouped(config: Config, linear: Cache, whole: int) -> tuple[Layer, ...]:
    """Let the last layer of each group attend, and the layers from ``whole`` on."""
    config.require("num_hidden_layers", "layer_group_size")
    size = config.positive("layer_group_size")
    attention: Cache = (
        latent_attention(config) if "kv_lora_rank" in config else full_attention(config)
    )
    return by_depth(
        attention if (depth + 1) % size == 0 or depth >= whole else linear
        for depth in range(config.num_layers)
    )
