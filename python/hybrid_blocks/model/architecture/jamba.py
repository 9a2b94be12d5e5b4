"""Mamba-1 beside attention: Jamba."""

from hybrid_blocks.model.architecture.common import by_depth, full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Mamba1
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """Attention where depth mod ``attn_layer_period`` is ``attn_layer_offset``."""
    config.require(
        "num_hidden_layers",
        "hidden_size",
        "attn_layer_period",
        "attn_layer_offset",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_expand",
    )
    period = config.positive("attn_layer_period")
    offset = config.integer("attn_layer_offset")
    attention = full_attention(config)
    mamba = Mamba1(
        inner_dim=config.positive("mamba_expand") * config.positive("hidden_size"),
        state_dim=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv"),
    )
    return by_depth(
        attention if depth % period == offset else mamba for depth in range(config.num_layers)
    )
