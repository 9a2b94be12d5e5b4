"""Nemotron-H, Nano and Super: a pattern string of Mamba-2, attention, MLP and MoE layers."""

from typing import Final

from hybrid_blocks.model.architecture.common import choose, full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, Mamba2
from hybrid_blocks.model.model import Layer

_LETTERS: Final = {"attention": "*", "mamba": "M", "mlp": "-", "moe": "E"}


def read(config: Config) -> tuple[Layer, ...]:
    """``hybrid_override_pattern`` or ``layers_block_type``.

    ``M`` is Mamba-2, ``*`` attention, ``-`` an MLP, ``E`` a mixture of experts.
    """
    config.require(
        "hybrid_override_pattern|layers_block_type|layer_types",
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups|mamba_n_groups",
        "ssm_state_size",
        "conv_kernel|mamba_d_conv",
    )
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
