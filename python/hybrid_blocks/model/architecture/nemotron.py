"""Nemotron-H, Nano and Super: a pattern string of Mamba-2, attention, MLP and MoE layers."""

from hybrid_blocks.model.architecture.common import by_depth, full_attention
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.errors import PlanError
from hybrid_blocks.model.layer import Cache, Mamba2
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``M`` is Mamba-2, ``*`` attention, ``-`` an MLP, ``E`` a mixture of experts."""
    config.require(
        "hybrid_override_pattern",
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
    )
    pattern = config.text("hybrid_override_pattern").replace("|", "")
    config.one_per_layer(tuple(pattern), "hybrid_override_pattern")
    heads = config.positive("mamba_num_heads")
    head_dim = config.positive("mamba_head_dim")
    kinds: dict[str, Cache | None] = {
        "*": full_attention(config),
        "M": Mamba2(
            inner_dim=heads * head_dim,
            groups=config.positive("n_groups"),
            heads=heads,
            head_dim=head_dim,
            state_dim=config.positive("ssm_state_size"),
            conv_kernel=config.positive("conv_kernel"),
            ssm_dtype=config.text("mamba_ssm_cache_dtype", "float32"),
        ),
        "-": None,
        "E": None,
    }
    if unknown := set(pattern) - kinds.keys():
        raise PlanError(
            f"{config.name}: hybrid_override_pattern holds {', '.join(sorted(unknown))}; "
            f"known are {' '.join(kinds)}"
        )
    return by_depth(kinds[letter] for letter in pattern)
