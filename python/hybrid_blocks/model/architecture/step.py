"""Step-3.5 and Step-3.7: windows with more query heads beside full attention."""

from typing import TYPE_CHECKING

import msgspec

from hybrid_blocks.model.architecture.common import choose, full_attention, sliding_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.model import Layer

if TYPE_CHECKING:
    from hybrid_blocks.model.layer import Cache


def read(config: Config) -> tuple[Layer, ...]:
    """``layer_types``, which may name the draft layers too; all layers are full without it."""
    config.require("num_hidden_layers", "num_attention_groups|num_key_value_heads")
    full = full_attention(config)
    names = config.strings("layer_types") or ("full_attention",) * config.num_layers
    names = names[: config.num_layers]
    known: dict[str, Cache | None] = {"full_attention": full}
    if window := config.optional("sliding_window"):
        query_heads = config.optional("num_sliding_attention_heads")
        if query_heads is None and config.get("attention_other_setting") is not None:
            query_heads = config.section("attention_other_setting").any_query_heads
        known["sliding_attention"] = msgspec.structs.replace(
            sliding_window(config, window), query_heads=query_heads or full.query_heads
        )
    return choose(config, names, "layer_types", known)
