"""Falcon-H1: attention and Mamba-2 side by side in every layer."""

from hybrid_blocks.model.architecture.common import full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Mamba2
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """Two caches a layer."""
    config.require(
        "num_hidden_layers",
        "mamba_n_heads",
        "mamba_d_state",
        "mamba_n_groups",
        "mamba_d_conv",
        "mamba_d_ssm|mamba_expand",
    )
    inner = config.optional("mamba_d_ssm") or config.positive("mamba_expand") * config.positive(
        "hidden_size"
    )
    attention = full_attention(config)
    heads = config.positive("mamba_n_heads")
    mamba = Mamba2(
        inner_dim=inner,
        groups=config.positive("mamba_n_groups"),
        heads=heads,
        head_dim=config.optional("mamba_d_head") or inner // heads,
        state_dim=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv"),
    )
    return tuple(
        Layer(depth, cache) for depth in range(config.num_layers) for cache in (mamba, attention)
    )
