"""Windowed and full attention in turn: Gemma-2, Gemma-3, Gemma-3n, Gemma-4 and RNJ-1."""

from typing import Final

from hybrid_blocks.model.architecture.common import choose, every, full_attention, sliding_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, FullAttention
from hybrid_blocks.model.model import Layer

RNJ: Final = "Rnj1ForCausalLM"
"""Architecture that writes Gemma-3's type into its file, and names its layers by itself."""


def _names(config: Config, default_pattern: int) -> tuple[str, ...]:
    """``layer_types`` where given, else full attention at every n-th layer."""
    if names := config.strings("layer_types"):
        return names
    pattern = config.positive("sliding_window_pattern", default=default_pattern)
    return every(config, pattern, "full_attention", "sliding_attention")


def read_gemma2(config: Config) -> tuple[Layer, ...]:
    """Gemma-2: every second layer is full."""
    return _read(config, _names(config, 2), full_attention(config))


def read_gemma3(config: Config) -> tuple[Layer, ...]:
    """Gemma-3: every sixth layer is full."""
    if RNJ in (config.strings("architectures") or ()):
        return _read_rnj(config)
    both_ways = config.flag("use_bidirectional_attention")
    return _read(config, _names(config, 6), full_attention(config), both_ways=both_ways)


def _read_rnj(config: Config) -> tuple[Layer, ...]:
    """RNJ-1: chunks that look back by one are windowed; all other layers are full."""
    full = full_attention(config)
    window = sliding_window(config, config.positive("sliding_window"))
    known: dict[str, Cache | None] = {
        "chunked_attention": window,
        "sliding_attention": full,
        "full_attention": full,
    }
    return choose(config, _names(config, 6), "layer_types", known)


def read_gemma3n(config: Config) -> tuple[Layer, ...]:
    """Gemma-3n: every fifth layer is full; the last layers share caches."""
    return _without_shared(config, _read(config, _names(config, 5), full_attention(config)))


def read_gemma4(config: Config) -> tuple[Layer, ...]:
    """Gemma-4: full layers have heads of their own size; the last layers may share caches."""
    config.require("num_hidden_layers", "head_dim", "sliding_window")
    heads = config.kv_heads
    if config.flag("attention_k_eq_v"):
        heads = config.optional("num_global_key_value_heads") or heads
    full = FullAttention(
        kv_heads=heads,
        head_dim=config.positive("global_head_dim", default=512),
        query_heads=config.query_heads,
    )
    names = (*_names(config, 6)[:-1], "full_attention")  # whatever the list says of the last one
    both_ways = config.get("use_bidirectional_attention") == "all"
    return _without_shared(config, _read(config, names, full, both_ways=both_ways))


def _without_shared(config: Config, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Leave out the last layers, which read caches of earlier ones."""
    own = config.num_layers - config.integer("num_kv_shared_layers", default=0)
    return tuple(layer for layer in layers if layer.depth < own)


def _read(
    config: Config, names: tuple[str, ...], full: FullAttention, *, both_ways: bool = False
) -> tuple[Layer, ...]:
    """Layers by name; attention in both directions sees half of the window on either side."""
    config.require("num_hidden_layers", "sliding_window")
    window = config.positive("sliding_window")
    known: dict[str, Cache | None] = {
        "sliding_attention": sliding_window(config, window // 2 + 1 if both_ways else window),
        "full_attention": full,
    }
    return choose(config, names, "layer_types", known)
