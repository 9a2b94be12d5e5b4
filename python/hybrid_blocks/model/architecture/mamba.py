"""Mamba and RG-LRU states, alone or with attention layers between them."""

from itertools import cycle, islice
from typing import Final

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.architecture.common import by_depth, choose, full_attention, sliding_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, FullAttention, Mamba1, Mamba2, RgLru
from hybrid_blocks.model.model import Layer


def read_mamba1(config: Config) -> tuple[Layer, ...]:
    """One state a layer; its width is ``intermediate_size``, else ``expand`` times the model's."""
    config.require("hidden_size")
    state = Mamba1(
        inner_dim=_inner(config),
        state_dim=config.positive("state_size"),
        conv_kernel=config.positive("conv_kernel"),
    )
    return by_depth(state for _ in range(config.num_layers))


def read_mamba2(config: Config) -> tuple[Layer, ...]:
    """One state a layer, with heads."""
    config.require("hidden_size")
    state = Mamba2(
        inner_dim=_inner(config),
        groups=config.positive("n_groups"),
        heads=config.positive("num_heads"),
        head_dim=config.positive("head_dim"),
        state_dim=config.positive("state_size"),
        conv_kernel=config.positive("conv_kernel"),
    )
    return by_depth(state for _ in range(config.num_layers))


def _inner(config: Config) -> int:
    expand = config.positive("expand", default=2)
    return config.optional("intermediate_size") or expand * config.positive("hidden_size")


def read_jamba(config: Config) -> tuple[Layer, ...]:
    """Attention where depth mod ``attn_layer_period`` is ``attn_layer_offset``."""
    period = config.positive("attn_layer_period")
    offset = config.integer("attn_layer_offset")
    attention = full_attention(config)
    mamba = Mamba1(
        inner_dim=config.positive("mamba_expand") * config.positive("hidden_size"),
        state_dim=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv"),
    )
    return by_depth(
        attention if depth % period == offset else mamba for depth in range(config.num_layers)
    )


def _mamba2(config: Config, inner: int) -> Mamba2:
    heads = config.positive("mamba_n_heads")
    return Mamba2(
        inner_dim=inner,
        groups=config.positive("mamba_n_groups"),
        heads=heads,
        head_dim=config.optional("mamba_d_head") or inner // heads,
        state_dim=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv"),
    )


def read_granite(config: Config) -> tuple[Layer, ...]:
    """``layer_types`` (``layers_block_type``), or the depths in ``attn_layer_indices``."""
    attention = full_attention(config)
    inner = config.positive("mamba_expand") * config.positive("hidden_size")
    mamba = _mamba2(config, inner)
    for field in ("layer_types", "layers_block_type"):
        if names := config.strings(field):
            return choose(config, names, field, {"mamba": mamba, "attention": attention})
    depths = config.integers("attn_layer_indices") or ()
    if any(depth >= config.num_layers for depth in depths):
        raise PlanError(f"{config.name}: attn_layer_indices exceed {config.num_layers} layers")
    return by_depth(attention if depth in depths else mamba for depth in range(config.num_layers))


_LETTERS: Final = {"attention": "*", "mamba": "M", "mlp": "-", "moe": "E"}


def read_nemotron(config: Config) -> tuple[Layer, ...]:
    """``hybrid_override_pattern`` or ``layers_block_type``.

    ``M`` is Mamba-2, ``*`` attention, ``-`` an MLP, ``E`` a mixture of experts.
    """
    config.require("hybrid_override_pattern|layers_block_type|layer_types")
    heads = config.positive("mamba_num_heads")
    head_dim = config.positive("mamba_head_dim")
    kinds: dict[str, Cache | None] = {
        "*": full_attention(config),
        "M": Mamba2(
            inner_dim=heads * head_dim,
            groups=config.positive("mamba_n_groups", "n_groups"),
            heads=heads,
            head_dim=head_dim,
            state_dim=config.positive("ssm_state_size"),
            conv_kernel=config.positive("mamba_d_conv", "conv_kernel"),
            ssm_dtype=config.text("mamba_ssm_cache_dtype", "float32"),
        ),
        "-": None,
        "E": None,
    }
    by_name = kinds | {name: kinds[letter] for name, letter in _LETTERS.items()}
    for field in ("layer_types", "layers_block_type"):
        if names := config.strings(field):
            return choose(config, names, field, by_name)
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, list):
        names = config.strings("hybrid_override_pattern") or ()
        return choose(config, names, "hybrid_override_pattern", by_name)
    letters = config.text("hybrid_override_pattern").replace("|", "")
    return choose(config, letters, "hybrid_override_pattern", kinds)


def read_falcon(config: Config) -> tuple[Layer, ...]:
    """Two caches a layer."""
    inner = config.optional("mamba_d_ssm") or config.positive("mamba_expand") * config.positive(
        "hidden_size"
    )
    attention = full_attention(config)
    mamba = _mamba2(config, inner)
    return tuple(
        Layer(depth, cache) for depth in range(config.num_layers) for cache in (mamba, attention)
    )


def read_zamba(config: Config) -> tuple[Layer, ...]:
    """``layers_block_type`` or ``hybrid_layer_ids`` say which layers also attend."""
    config.require("layers_block_type|hybrid_layer_ids")
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


def read_plamo(config: Config) -> tuple[Layer, ...]:
    """In each run of ``mamba_step`` layers the middle one attends.

    Attention is limited to ``attention_window_size`` but for the depths in ``full_attention_idx``.
    """
    heads = config.positive("mamba_num_heads")
    head_dim = config.positive("hidden_size_per_head")
    mamba = Mamba2(
        inner_dim=heads * head_dim,
        groups=0,
        heads=heads,
        head_dim=head_dim,
        state_dim=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv", default=4),
    )
    step = config.positive("mamba_step")
    windowed = sliding_window(config, config.positive("attention_window_size"))
    full = full_attention(config)
    unlimited = config.integers("full_attention_idx") or ()
    last = config.num_layers - 1

    def attends(depth: int) -> bool:
        if config.num_layers <= step // 2:
            return depth == last
        return depth % step == step // 2

    return by_depth(
        mamba if not attends(depth) else full if depth in unlimited else windowed
        for depth in range(config.num_layers)
    )


def read_recurrent_gemma(config: Config) -> tuple[Layer, ...]:
    """``block_types`` repeats over the depth."""
    config.require("block_types")
    recurrent = RgLru(
        width=config.positive("lru_width", "hidden_size"),
        conv_kernel=config.positive("conv1d_width"),
    )
    attention = sliding_window(config, config.positive("attention_window_size"))
    pattern = config.strings("block_types") or ()
    names = list(islice(cycle(pattern), config.num_layers))
    return choose(config, names, "block_types", {"recurrent": recurrent, "attention": attention})
