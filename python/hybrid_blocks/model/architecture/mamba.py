"""Recurrent states alone, and no attention: Mamba, Falcon-Mamba and Mamba-2."""

from hybrid_blocks.model.architecture.common import by_depth
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Mamba1, Mamba2
from hybrid_blocks.model.model import Layer


def read_mamba1(config: Config) -> tuple[Layer, ...]:
    """One state a layer; its width is ``intermediate_size``, else ``expand`` times the model's."""
    config.require("num_hidden_layers", "hidden_size", "state_size", "conv_kernel")
    state = Mamba1(
        inner_dim=_inner(config),
        state_dim=config.positive("state_size"),
        conv_kernel=config.positive("conv_kernel"),
    )
    return by_depth(state for _ in range(config.num_layers))


def read_mamba2(config: Config) -> tuple[Layer, ...]:
    """One state a layer, with heads."""
    config.require("num_hidden_layers", "hidden_size", "num_heads", "head_dim", "state_size")
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
