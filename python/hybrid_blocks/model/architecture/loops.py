"""Models that run their layers several times, and keep a cache for each time."""

from collections.abc import Sequence

from hybrid_blocks.model.architecture.common import (
    by_depth,
    choose,
    full_attention,
    sliding_window,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache
from hybrid_blocks.model.model import Layer


def read_loop_coder(config: Config) -> tuple[Layer, ...]:
    """IQuest-LoopCoder: the first time all tokens are read, then ``loop_window_size`` of them."""
    windowed = sliding_window(config, config.positive("loop_window_size", default=64))
    loops = config.positive("loop_num", default=2)
    return _turns(config, [full_attention(config), *[windowed] * (loops - 1)])


def read_hrm(config: Config) -> tuple[Layer, ...]:
    """HRM: ``L_cycles`` fast steps and a slow one, ``H_cycles`` times.

    The class writes the layers of all steps as ``num_hidden_layers``, those of one beside it.
    """
    high, low = config.positive("H_cycles"), config.positive("L_cycles")
    layers = config.positive("num_layers_per_stack", default=config.num_layers)
    attention = full_attention(config)
    return by_depth(attention for _ in range(layers * high * (low + 1)))


def read_dory(config: Config) -> tuple[Layer, ...]:
    """Dory: the layers in the middle recur, and share a cache or have one for each loop.

    Every second layer is an MLP, every eighth is full, unless ``layer_types`` says otherwise.
    """
    known: dict[str, Cache | None] = {"full_attention": full_attention(config), "mlp": None}
    if window := config.optional("sliding_window"):
        known["sliding_attention"] = sliding_window(config, window)
    names = config.strings("layer_types") or tuple(
        "mlp" if depth % 2 else "full_attention" if depth % 8 == 6 else "sliding_attention"
        for depth in range(config.num_layers)
    )
    layers = choose(config, names, "layer_types", known)
    if config.text("recurrent_kv_cache_mode", "per_loop") != "per_loop":
        return layers
    first = config.integer("n_input_layers", default=0)
    last = config.num_layers - config.integer("n_output_layers", default=0)
    loops = config.positive("n_recurrent_loops", default=1)
    again = tuple(
        Layer(loop * config.num_layers + layer.depth, layer.cache)
        for loop in range(1, loops)
        for layer in layers
        if first <= layer.depth < last
    )
    return layers + again


def _turns(config: Config, caches: Sequence[Cache]) -> tuple[Layer, ...]:
    """Count the layers of each turn on from those of the turn before."""
    return tuple(
        Layer(turn * config.num_layers + depth, cache)
        for turn, cache in enumerate(caches)
        for depth in range(config.num_layers)
    )
