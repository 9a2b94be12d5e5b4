"""Linear attention and short convolutions with attention layers between them."""

from typing import Final

from hybrid_blocks.model.architecture.common import (
    by_depth,
    choose,
    full_attention,
    latent_attention,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import (
    Cache,
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    ShortConv,
    SparseIndex,
    TokenConvolution,
)
from hybrid_blocks.model.model import Layer

_FULL: Final = ("full_attention", "indexed_attention", "qwen_sparse_attention")
"""Names of layers that attend to all tokens, or to those that an index chooses."""


def read_qwen(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` where given, else full attention at every ``full_attention_interval``-th."""
    config.require("num_attention_heads")
    return _read(config, _linear(config))


def sparse_parts(config: Config) -> tuple[SparseIndex | None, tuple[TokenConvolution, ...]]:
    """Qwen4: the index of its full layers, and the convolutions over n-grams."""
    index = None
    if config.optional("indexer_n_heads"):
        index = SparseIndex(
            head_dim=config.positive("indexer_head_dim"),
            compress_ratio=config.positive("indexer_compress_ratio"),
        )
    kernel = config.positive("ple_conv_kernel_size", default=4)
    convolutions = tuple(
        TokenConvolution(
            depth=number - 1,
            width=config.positive("hc_count", default=4) * config.positive("hidden_size"),
            columns=(kernel - 1) * config.positive("ngram_size", default=3),
        )
        for number in sorted(set(config.integers("ple_layer_ids") or ()))
    )
    return index, convolutions


def read_olmo_hybrid(config: Config) -> tuple[Layer, ...]:
    """Olmo-Hybrid: sizes of the linear layers follow from the attention's where absent."""
    heads = config.positive("linear_num_key_heads", default=config.query_heads)
    key_dim = config.positive(
        "linear_key_head_dim", default=3 * config.positive("hidden_size") // (4 * heads)
    )
    linear = GatedDeltaNet(
        key_heads=heads,
        value_heads=config.positive("linear_num_value_heads", default=config.query_heads),
        key_dim=key_dim,
        value_dim=config.positive("linear_value_head_dim", default=2 * key_dim),
        conv_kernel=config.positive("linear_conv_kernel_dim"),
        ssm_dtype=config.text("mamba_ssm_dtype") or None,
    )
    return _read(config, linear)


def _linear(config: Config) -> GatedDeltaNet:
    return GatedDeltaNet(
        key_heads=config.positive("linear_num_key_heads"),
        value_heads=config.positive("linear_num_value_heads"),
        key_dim=config.positive("linear_key_head_dim"),
        value_dim=config.positive("linear_value_head_dim"),
        conv_kernel=config.positive("linear_conv_kernel_dim"),
        ssm_dtype=config.text("mamba_ssm_dtype") or None,
    )


def _read(config: Config, linear: GatedDeltaNet) -> tuple[Layer, ...]:
    attention = full_attention(config)
    if names := config.strings("layer_types"):
        return choose(
            config,
            names,
            "layer_types",
            {**dict.fromkeys(_FULL, attention), "linear_attention": linear},
        )
    interval = config.positive("full_attention_interval", default=4)
    return by_depth(
        attention if (depth + 1) % interval == 0 else linear for depth in range(config.num_layers)
    )


def read_kimi(config: Config) -> tuple[Layer, ...]:
    """``linear_attn_config.full_attn_layers`` counts layers from 1."""
    linear = config.section("linear_attn_config")
    linear.require("full_attn_layers")
    attention = latent_attention(config)
    kda = KimiDeltaAttention(
        heads=linear.positive("num_heads"),
        head_dim=linear.positive("head_dim"),
        conv_kernel=linear.positive("short_conv_kernel_size"),
        flash=linear.flag("use_full_rank_gate") and "gate_lower_bound" in linear,
    )
    attending = linear.integers("full_attn_layers") or ()
    return by_depth(
        attention if depth + 1 in attending else kda for depth in range(config.num_layers)
    )


def read_alice(config: Config) -> tuple[Layer, ...]:
    """AliceAI: Kimi delta attention beside plain attention, by ``layer_types``."""
    config.require("layer_types")
    kda = KimiDeltaAttention(
        heads=config.positive("linear_num_key_heads"),
        head_dim=config.positive("linear_key_head_dim"),
        conv_kernel=config.positive("linear_conv_kernel_dim"),
    )
    known: dict[str, Cache | None] = {
        "full_attention": full_attention(config),
        "linear_attention": kda,
    }
    return choose(config, config.strings("layer_types") or (), "layer_types", known)


def read_ling_v3(config: Config) -> tuple[Layer, ...]:
    """Ling-3: Kimi delta attention; all layers of a last group that is not full attend."""
    kda = KimiDeltaAttention(
        heads=config.query_heads,
        head_dim=config.head_dim,
        conv_kernel=config.positive("short_conv_kernel_size"),
    )
    whole = config.num_layers // config.positive("layer_group_size")
    return _grouped(config, kda, whole * config.positive("layer_group_size"))


def read_ling_v2_5(config: Config) -> tuple[Layer, ...]:
    """Ling-2.5 and Ring-2.5: lightning attention."""
    linear = LightningAttention(heads=config.query_heads, head_dim=config.head_dim)
    return _grouped(config, linear, config.num_layers)


def _grouped(config: Config, linear: Cache, whole: int) -> tuple[Layer, ...]:
    """Let the last layer of each group attend, and the layers from ``whole`` on."""
    size = config.positive("layer_group_size")
    attention: Cache = (
        latent_attention(config) if "kv_lora_rank" in config else full_attention(config)
    )
    return by_depth(
        attention if (depth + 1) % size == 0 or depth >= whole else linear
        for depth in range(config.num_layers)
    )


def read_minimax(config: Config) -> tuple[Layer, ...]:
    """``layer_types``, or ``attn_type_list`` or a pattern of it that repeats.

    In the latter 1 is softmax, 0 lightning.
    """
    config.require("attn_type_list|layer_types")
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


def read_lfm(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` or the depths in ``full_attn_idxs``."""
    config.require("layer_types|full_attn_idxs")
    attention = full_attention(config)
    conv = ShortConv(
        width=config.positive("conv_dim", "hidden_size"),
        conv_kernel=config.positive("conv_L_cache"),
    )
    if names := config.strings("layer_types"):
        return choose(config, names, "layer_types", {"full_attention": attention, "conv": conv})
    depths = config.integers("full_attn_idxs") or ()
    return by_depth(attention if depth in depths else conv for depth in range(config.num_layers))
