"""Short convolutions beside attention: LFM2."""

from hybrid_blocks.model.architecture.common import by_depth, choose, full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import ShortConv
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` or the depths in ``full_attn_idxs``."""
    config.require("num_hidden_layers", "conv_L_cache", "layer_types|full_attn_idxs")
    attention = full_attention(config)
    conv = ShortConv(
        width=config.positive("conv_dim", "hidden_size"),
        conv_kernel=config.positive("conv_L_cache"),
    )
    if names := config.strings("layer_types"):
        return choose(config, names, "layer_types", {"full_attention": attention, "conv": conv})
    depths = config.integers("full_attn_idxs") or ()
    return by_depth(attention if depth in depths else conv for depth in range(config.num_layers))
