"""PLaMo-2: Mamba-2 without groups beside windowed attention."""

from hybrid_blocks.model.architecture.common import by_depth, full_attention, sliding_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Mamba2
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """In each run of ``mamba_step`` layers the middle one attends.

    Attention is limited to ``attention_window_size`` but for the depths in ``full_attention_idx``.
    """
    config.require(
        "num_hidden_layers",
        "mamba_step",
        "mamba_num_heads",
        "hidden_size_per_head",
        "mamba_d_state",
        "attention_window_size",
    )
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
