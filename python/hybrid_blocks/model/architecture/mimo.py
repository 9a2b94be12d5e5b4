"""MiMo-V2: windows with heads of their own beside full attention; values narrower than keys."""

from hybrid_blocks.model.architecture.common import by_depth, choose
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, FullAttention, SlidingWindow
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``hybrid_layer_pattern`` (1 is windowed) or ``layer_types``, else every sixth layer is full.

    Without a pattern the first layer is full too. Fields of windowed layers begin with ``swa_``.
    """
    config.require("num_hidden_layers", "num_attention_heads", "head_dim")
    full = FullAttention(
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        value_dim=config.optional("v_head_dim"),
        query_heads=config.query_heads,
    )
    windowed = SlidingWindow(
        kv_heads=config.positive("swa_num_key_value_heads", default=full.kv_heads),
        head_dim=config.positive("swa_head_dim", default=full.head_dim),
        value_dim=config.optional("swa_v_head_dim", "v_head_dim"),
        query_heads=config.positive("swa_num_attention_heads", default=config.query_heads),
        window=config.positive("sliding_window_size", "sliding_window"),
    )
    if (pattern := config.integers("hybrid_layer_pattern")) is not None:
        config.one_per_layer(pattern, "hybrid_layer_pattern")
        return by_depth(windowed if kind == 1 else full for kind in pattern)
    names = config.strings("layer_types") or tuple(
        "full_attention" if depth == 0 or (depth + 1) % 6 == 0 else "sliding_attention"
        for depth in range(config.num_layers)
    )
    known: dict[str, Cache | None] = {"full_attention": full, "sliding_attention": windowed}
    return choose(config, names, "layer_types", known)
