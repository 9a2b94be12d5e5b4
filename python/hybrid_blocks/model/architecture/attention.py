"""Attention of one kind in most layers: full, latent, or Llama-4's chunks."""

from typing import Final

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.architecture.common import (
    FULL,
    TYPES,
    WINDOWED,
    by_depth,
    by_name,
    every,
    full_attention,
    latent_attention,
    sliding_window,
    used_window,
    with_window,
)
from hybrid_blocks.model.architecture.window import Pattern
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import ChunkedAttention, LatentIndex, SlidingWindow
from hybrid_blocks.model.model import Layer

PLAIN: Final = tuple(TYPES["plain"].split())
"""Types whose layers are all alike, unless ``layer_types`` says otherwise."""


def read_plain(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` where given; else a window on all layers where there is one; else full."""
    if names := config.strings("layer_types"):
        return by_name(config, names)
    window = used_window(config)
    cache = sliding_window(config, window) if window else full_attention(config)
    return by_depth(cache for _ in range(config.num_layers))


def read_qwen2(config: Config) -> tuple[Layer, ...]:
    """Qwen2 and Qwen3: layers from ``max_window_layers`` on are windowed."""
    unlimited = config.integer("max_window_layers", default=config.num_layers)
    names = config.strings("layer_types") or tuple(
        WINDOWED if used_window(config) and depth >= unlimited else FULL
        for depth in range(config.num_layers)
    )
    if len(set(names)) > 1:
        raise PlanError(
            f"{config.name}: {names.count('sliding_attention')} of {len(names)} layers have a "
            "sliding window; vLLM serves this family with all or none (max_window_layers)"
        )
    return by_name(config, names)


def read_qwen2_moe(config: Config) -> tuple[Layer, ...]:
    """Qwen2-MoE: a window counts only where ``layer_types`` gives it to all layers."""
    full = full_attention(config)
    if set(config.strings("layer_types") or ()) == {WINDOWED}:
        return read_plain(config)
    return by_depth(full for _ in range(config.num_layers))


def read_exaone4(config: Config) -> tuple[Layer, ...]:
    """EXAONE-4: every ``sliding_window_pattern``-th layer is full.

    K-EXAONE-2 lists the window of each layer in ``sliding_windows``.
    """
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        letters = {"L": WINDOWED, "G": FULL}
        names = [
            letters.get(pattern[depth % len(pattern)], pattern)
            for depth in range(config.num_layers)
        ]
        layers = by_name(config, config.strings("layer_types") or names)
    else:
        layers = Pattern(interval=4, field="sliding_window_pattern")(config)
    windows = config.get("sliding_windows")
    return tuple(
        msgspec.structs.replace(layer, cache=with_window(layer.cache, windows, layer.depth))
        if isinstance(layer.cache, SlidingWindow)
        else layer
        for layer in layers
    )


def read_smollm3(config: Config) -> tuple[Layer, ...]:
    """SmolLM3: layers without rotary embedding, every fourth, are windowed if windows are used."""
    interval = config.positive("no_rope_layer_interval", default=4)
    rotary = config.integers("no_rope_layers") or tuple(
        int((depth + 1) % interval != 0) for depth in range(config.num_layers)
    )
    names = config.strings("layer_types") or tuple(
        FULL if rotates or not used_window(config) else WINDOWED for rotates in rotary
    )
    return by_name(config, names)


def read_gpt_oss(config: Config) -> tuple[Layer, ...]:
    """gpt-oss: windowed at even depths, whatever ``layer_types`` says, unless it windows all."""
    config.require("sliding_window")
    if set(config.strings("layer_types") or ()) == {WINDOWED}:
        return read_plain(config)
    return by_name(config, every(config, 2, FULL, WINDOWED))


def read_llama4(config: Config) -> tuple[Layer, ...]:
    """Llama-4: layers with rotary embedding are chunked, the others full."""
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


def read_latent(config: Config) -> tuple[Layer, ...]:
    """One latent a token and layer; plain attention where no head has such dimensions."""
    if "index_topk" in config:
        return read_sparse_latent(config)
    config.require("num_attention_heads")
    dims = (config.get("qk_nope_head_dim"), config.get("qk_rope_head_dim"))
    attention = full_attention(config) if dims == (0, 0) else latent_attention(config)
    return by_depth(attention for _ in range(config.num_layers))


def read_sparse_latent(config: Config) -> tuple[Layer, ...]:
    """DeepSeek-V3.2: an index beside each latent, but where a layer takes what another chose."""
    follower = msgspec.structs.replace(latent_attention(config), sparse=True)
    leader = msgspec.structs.replace(follower, leads=True)
    index = LatentIndex(head_dim=config.positive("index_head_dim"))
    return tuple(
        Layer(depth, cache)
        for depth in range(config.num_layers)
        for cache in ((leader, index) if _leads(config, depth) else (follower,))
    )


def _leads(config: Config, depth: int) -> bool:
    """Whether a layer has an index: a letter says so, or the distance from the first ones."""
    letters = config.get("index_topk_pattern")
    if isinstance(letters, str | list):
        return depth >= len(letters) or letters[depth] != "S"
    behind = depth + 1 - config.integer("index_skip_topk_offset", default=2)
    return max(behind, 0) % config.positive("index_topk_freq", default=1) == 0


def read_longcat(config: Config) -> tuple[Layer, ...]:
    """LongCat-Flash: two attentions a layer, each with its own cache."""
    attention = latent_attention(config)
    return tuple(Layer(depth, attention) for depth in range(config.num_layers) for _ in range(2))
