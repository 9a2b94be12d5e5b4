"""Plain decoders (Llama, Mistral, Qwen, Phi-3, gpt-oss ...) and Llama-4 with chunked attention."""

from hybrid_blocks.model.architecture.common import (
    by_depth,
    choose,
    full_attention,
    sliding_window,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, ChunkedAttention
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` where given; else a window on all layers where there is one; else full."""
    config.require("num_hidden_layers", "num_attention_heads|num_key_value_heads")
    window = config.optional("sliding_window")
    if not config.flag("use_sliding_window", default=True):
        window = None
    full = full_attention(config)
    if names := config.strings("layer_types"):
        known: dict[str, Cache | None] = {"full_attention": full}
        if window:
            known["sliding_attention"] = sliding_window(config, window)
        return choose(config, names, "layer_types", known)
    cache = sliding_window(config, window) if window else full
    return by_depth(cache for _ in range(config.num_layers))


def read_gpt_oss(config: Config) -> tuple[Layer, ...]:
    """gpt-oss: windowed at even depths unless ``layer_types`` says otherwise."""
    config.require("num_hidden_layers", "sliding_window")
    if "layer_types" in config:
        return read(config)
    windowed = sliding_window(config, config.positive("sliding_window"))
    full = full_attention(config)
    return by_depth(full if depth % 2 else windowed for depth in range(config.num_layers))


def read_llama4(config: Config) -> tuple[Layer, ...]:
    """Llama-4: layers with rotary embedding are chunked, the others full."""
    config.require("num_hidden_layers", "attention_chunk_size")
    full = full_attention(config)
    chunked = ChunkedAttention(
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        query_heads=config.query_heads,
        chunk=config.positive("attention_chunk_size"),
    )
    if flags := config.integers("no_rope_layers"):
        config.one_per_layer(flags, "no_rope_layers")
        return by_depth(chunked if rotary else full for rotary in flags)
    interval = config.positive("no_rope_layer_interval", default=4)
    return by_depth(
        chunked if (depth + 1) % interval else full for depth in range(config.num_layers)
    )
