"""Full attention whose heads have names or numbers of their own, or whose layers run again."""

from collections.abc import Sequence

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.architecture.common import by_depth, choose, full_attention, sliding_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, FullAttention
from hybrid_blocks.model.model import Layer


def read_falcon(config: Config) -> tuple[Layer, ...]:
    """Falcon: ``num_kv_heads`` counts in the new decoder, one head serves all in the older one."""
    heads = config.query_heads
    if config.flag("new_decoder_architecture"):
        kv_heads = config.optional("num_kv_heads", "n_head_kv") or heads
    else:
        kv_heads = 1 if config.flag("multi_query", default=True) else heads
    return _uniform(config, kv_heads)


def read_multi_query(config: Config) -> tuple[Layer, ...]:
    """GPT-BigCode: one head serves all unless ``multi_query`` is false."""
    return _uniform(config, 1 if config.flag("multi_query", default=True) else config.query_heads)


def read_chatglm(config: Config) -> tuple[Layer, ...]:
    """ChatGLM: ``multi_query_group_num`` counts where ``multi_query_attention`` is set."""
    grouped = config.flag("multi_query_attention")
    return _uniform(
        config, config.positive("multi_query_group_num") if grouped else config.query_heads
    )


def read_dbrx(config: Config) -> tuple[Layer, ...]:
    """DBRX: ``attn_config`` counts the heads."""
    heads = config.section("attn_config") if "attn_config" in config else config
    return _uniform(config, heads.positive("kv_n_heads", default=1))


def read_step3(config: Config) -> tuple[Layer, ...]:
    """Step-3: all query heads share one head."""
    full = FullAttention(
        kv_heads=1, head_dim=config.positive("head_dim"), query_heads=config.query_heads
    )
    return by_depth(full for _ in range(config.num_layers))


def read_moondream(config: Config) -> tuple[Layer, ...]:
    """Moondream-3: short names for all sizes."""
    heads = config.positive("n_heads")
    full = FullAttention(
        kv_heads=config.positive("n_kv_heads"),
        head_dim=config.positive("dim") // heads,
        query_heads=heads,
    )
    return by_depth(full for _ in range(config.num_layers))


def read_unfolded_latent(config: Config) -> tuple[Layer, ...]:
    """MiniCPM-3: each head's keys are unfolded from the latent before they are kept."""
    full = FullAttention(
        kv_heads=config.query_heads,
        head_dim=config.positive("qk_nope_head_dim") + config.positive("qk_rope_head_dim"),
        query_heads=config.query_heads,
    )
    return by_depth(full for _ in range(config.num_layers))


def read_nemotron_nas(config: Config) -> tuple[Layer, ...]:
    """Nemotron-NAS: ``block_configs`` says how many queries share a head, or that none attends."""
    blocks = config.get("block_configs")
    if not isinstance(blocks, list):
        raise PlanError(f"{config.name}: config.json lacks the list block_configs")
    config.one_per_layer(tuple(blocks), "block_configs")
    heads = config.query_heads
    return by_depth(
        None
        if attention.flag("no_op")
        else msgspec.structs.replace(
            full_attention(config), kv_heads=heads // attention.positive("n_heads_in_group")
        )
        for attention in (
            Config({"block": block}, config.name).section("block").section("attention")
            for block in blocks
        )
    )


def _uniform(config: Config, kv_heads: int) -> tuple[Layer, ...]:
    full = FullAttention(
        kv_heads=kv_heads,
        head_dim=config.positive("hidden_size") // config.query_heads,
        query_heads=config.query_heads,
    )
    return by_depth(full for _ in range(config.num_layers))


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
