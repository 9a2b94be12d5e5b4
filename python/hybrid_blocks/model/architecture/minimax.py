"""Lightning attention beside softmax attention: MiniMax-01 and M1."""

from hybrid_blocks.model.architecture.common import by_depth, choose, full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, LightningAttention
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``layer_types``, or ``attn_type_list`` or a pattern of it that repeats.

    In the latter 1 is softmax, 0 lightning.
    """
    config.require("num_hidden_layers", "num_attention_heads", "attn_type_list|layer_types")
    attention = full_attention(config)
    lightning = LightningAttention(heads=config.query_heads, head_dim=config.head_dim)
    if names := config.strings("layer_types"):
        known: dict[str, Cache | None] = {
            "full_attention": attention,
            "linear_attention": lightning,
        }
        return choose(config, names, "layer_types", known)
    types = config.integers("attn_type_list") or ()
    if 0 < len(types) < config.num_layers and config.num_layers % len(types) == 0:
        types *= config.num_layers // len(types)
    config.one_per_layer(types, "attn_type_list")
    return by_depth(attention if kind else lightning for kind in types)
