"""Gated DeltaNet beside gated attention: Qwen3-Next, Qwen3.5 and later, Olmo-Hybrid."""

from typing import Final

from hybrid_blocks.model.architecture.common import by_depth, choose, full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import GatedDeltaNet
from hybrid_blocks.model.model import Layer
from hybrid_blocks.model.sparse import SparseIndex, TokenConvolution

_FULL: Final = ("full_attention", "indexed_attention", "qwen_sparse_attention")
"""Names of layers that attend to all tokens, or to those that an index chooses."""


def read(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` where given, else full attention at every ``full_attention_interval``-th."""
    config.require(
        "num_hidden_layers",
        "num_attention_heads",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
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
            {
                **dict.fromkeys(_FULL, attention),
                "linear_attention": linear,
            },
        )
    interval = config.positive("full_attention_interval", default=4)
    return by_depth(
        attention if (depth + 1) % interval == 0 else linear for depth in range(config.num_layers)
    )
