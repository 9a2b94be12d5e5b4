"""Windowed and full attention in turn: Gemma-2, Gemma-3 and Gemma-4."""

from hybrid_blocks.model.architecture.common import choose, full_attention, sliding_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, FullAttention
from hybrid_blocks.model.model import Layer


def _names(config: Config, default_pattern: int) -> tuple[str, ...]:
    """``layer_types`` where given, else full attention at every n-th layer."""
    if names := config.strings("layer_types"):
        return names
    pattern = config.positive("sliding_window_pattern", default=default_pattern)
    return tuple(
        "sliding_attention" if (depth + 1) % pattern else "full_attention"
        for depth in range(config.num_layers)
    )


def read_gemma2(config: Config) -> tuple[Layer, ...]:
    """Gemma-2: every second layer is full."""
    return _read(config, _names(config, 2), full_attention(config))


def read_gemma3(config: Config) -> tuple[Layer, ...]:
    """Gemma-3: every sixth layer is full."""
    return _read(config, _names(config, 6), full_attention(config))


def read_gemma4(config: Config) -> tuple[Layer, ...]:
    """Gemma-4: full layers have heads of their own size; the last layers may share caches."""
    config.require("num_hidden_layers", "head_dim", "global_head_dim", "sliding_window")
    heads = config.kv_heads
    if config.flag("attention_k_eq_v"):
        heads = config.optional("num_global_key_value_heads") or heads
    full = FullAttention(
        kv_heads=heads,
        head_dim=config.positive("global_head_dim"),
        query_heads=config.query_heads,
    )
    own = config.num_layers - config.integer("num_kv_shared_layers", default=0)
    return tuple(layer for layer in _read(config, _names(config, 6), full) if layer.depth < own)


def _read(config: Config, names: tuple[str, ...], full: FullAttention) -> tuple[Layer, ...]:
    config.require("num_hidden_layers", "sliding_window")
    known: dict[str, Cache | None] = {
        "sliding_attention": sliding_window(config, config.positive("sliding_window")),
        "full_attention": full,
    }
    return choose(config, names, "layer_types", known)
