"""Mamba-2 beside a few attention layers: Granite-4-H and Bamba."""

from hybrid_blocks.model.architecture.common import by_depth, choose, full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.errors import PlanError
from hybrid_blocks.model.layer import Mamba2
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` (``layers_block_type``), or the depths in ``attn_layer_indices``."""
    config.require(
        "num_hidden_layers",
        "hidden_size",
        "mamba_n_heads",
        "mamba_d_state",
        "mamba_n_groups",
        "mamba_d_conv",
        "mamba_expand",
    )
    attention = full_attention(config)
    inner = config.positive("mamba_expand") * config.positive("hidden_size")
    heads = config.positive("mamba_n_heads")
    mamba = Mamba2(
        inner_dim=inner,
        groups=config.positive("mamba_n_groups"),
        heads=heads,
        head_dim=config.optional("mamba_d_head") or inner // heads,
        state_dim=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv"),
    )
    for field in ("layer_types", "layers_block_type"):
        if names := config.strings(field):
            return choose(config, names, field, {"mamba": mamba, "attention": attention})
    depths = config.integers("attn_layer_indices") or ()
    if any(depth >= config.num_layers for depth in depths):
        raise PlanError(f"{config.name}: attn_layer_indices exceed {config.num_layers} layers")
    return by_depth(attention if depth in depths else mamba for depth in range(config.num_layers))
