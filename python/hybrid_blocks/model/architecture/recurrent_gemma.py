"""RG-LRU beside local attention: RecurrentGemma."""

from itertools import cycle, islice

from hybrid_blocks.model.architecture.common import choose, sliding_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import RgLru
from hybrid_blocks.model.model import Layer


def read(config: Config) -> tuple[Layer, ...]:
    """``block_types`` repeats over the depth."""
    config.require("num_hidden_layers", "attention_window_size", "conv1d_width", "block_types")
    recurrent = RgLru(
        width=config.positive("lru_width", "hidden_size"),
        conv_kernel=config.positive("conv1d_width"),
    )
    attention = sliding_window(config, config.positive("attention_window_size"))
    pattern = config.strings("block_types") or ()
    names = list(islice(cycle(pattern), config.num_layers))
    return choose(config, names, "block_types", {"recurrent": recurrent, "attention": attention})
