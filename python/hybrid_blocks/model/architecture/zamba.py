"""Zamba2: Mamba-2 everywhere; some layers also attend, with shared weights but own caches."""

from hybrid_blocks.model.config import Config
from hybrid_blocks.model.errors import PlanError
from hybrid_blocks.model.layer import FullAttention, Mamba2
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``layers_block_type`` or ``hybrid_layer_ids`` say which layers also attend."""
    config.require(
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "n_mamba_heads",
        "mamba_ngroups",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_expand",
        "layers_block_type|hybrid_layer_ids",
    )
    heads = config.query_heads
    attention = FullAttention(
        kv_heads=config.kv_heads,
        head_dim=config.optional("attention_head_dim")
        or 2 * config.positive("hidden_size") // heads,
        query_heads=heads,
    )
    inner = config.positive("mamba_expand") * config.positive("hidden_size")
    mamba_heads = config.positive("n_mamba_heads")
    mamba = Mamba2(
        inner_dim=inner,
        groups=config.positive("mamba_ngroups"),
        heads=mamba_heads,
        head_dim=inner // mamba_heads,
        state_dim=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv"),
    )
    hybrid = _hybrid_depths(config)
    return tuple(
        Layer(depth, cache)
        for depth in range(config.num_layers)
        for cache in ((mamba, attention) if depth in hybrid else (mamba,))
    )


def _hybrid_depths(config: Config) -> frozenset[int]:
    names = config.strings("layers_block_type")
    if names is None:
        return frozenset(config.integers("hybrid_layer_ids") or ())
    config.one_per_layer(names, "layers_block_type")
    if unknown := set(names) - {"mamba", "linear_attention", "hybrid"}:
        raise PlanError(f"{config.name}: layers_block_type names {', '.join(sorted(unknown))}")
    return frozenset(depth for depth, name in enumerate(names) if name == "hybrid")
