"""Windowed layers between full ones: Gemma, MiMo-V2, Step-3.5 and others."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.architecture.common import (
    FULL,
    WINDOWED,
    Reader,
    by_depth,
    by_name,
    choose,
    every,
    full_attention,
    sliding_window,
    used_window,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, FullAttention, SlidingWindow
from hybrid_blocks.model.model import Layer

if TYPE_CHECKING:
    from hybrid_blocks.model.layer import Cache


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """Where the full layers lie if ``layer_types`` is absent, and what else differs.

    Every ``interval``-th layer is full, or as ``field`` says. ``first`` makes the first of each
    group full in place of the last; ``from_end`` counts from the last layer. A token also reads
    ``extra`` tokens besides its window.
    """

    interval: int
    field: str | None = None
    first: bool = False
    from_end: bool = False
    extra: int = 0

    def __call__(self, config: Config) -> tuple[Layer, ...]:
        """Read the layers."""
        names = config.strings("layer_types") or tuple(self.names(config))
        return by_name(config, names, self.extra)

    def names(self, config: Config) -> Iterable[str]:
        """Name each layer."""
        if not used_window(config):
            return (FULL,) * config.num_layers
        interval = config.positive(self.field or "", default=self.interval)
        if self.from_end:
            return reversed(self._from_first(config, interval))
        if self.first:
            return self._from_first(config, interval)
        return every(config, interval, FULL, WINDOWED)

    @staticmethod
    def _from_first(config: Config, interval: int) -> tuple[str, ...]:
        return tuple(WINDOWED if depth % interval else FULL for depth in range(config.num_layers))


def read_cohere2_moe(config: Config) -> tuple[Layer, ...]:
    """Command: the first, dense layers have a pattern of their own."""
    dense = config.integer("first_k_dense_replace", default=0)
    first = config.positive("prefix_dense_sliding_window_pattern", default=1)
    interval = config.positive("sliding_window_pattern", default=4)
    names = config.strings("layer_types") or tuple(
        WINDOWED if turn % pattern else FULL
        for turn, pattern in (
            (depth + 1, first) if depth < dense else (depth - dense + 1, interval)
            for depth in range(config.num_layers)
        )
    )
    windowed = sliding_window(config, config.positive("sliding_window") + 1)
    return choose(config, names, "layer_types", {FULL: full_attention(config), WINDOWED: windowed})


def read_plamo3(config: Config) -> tuple[Layer, ...]:
    """PLaMo-3: ``interleaved_sliding_window`` by layer, else every n-th layer is full."""
    windows = config.get("interleaved_sliding_window") or config.get("sliding_window")
    if not isinstance(windows, list):
        interval = config.positive("sliding_window_pattern", default=8)
        window = config.positive("window_size", "sliding_window")
        names = config.strings("layer_types") or every(config, interval, FULL, WINDOWED)
        windows = [window if name == WINDOWED else None for name in names]
    return _by_window(config, windows)


def read_domyn(config: Config) -> tuple[Layer, ...]:
    """Domyn-Edge: ``window_sizes`` holds the tokens before and behind each layer's own."""
    sizes = config.get("window_sizes")
    if not isinstance(sizes, list) or not all(
        isinstance(size, list) and size and isinstance(size[0], int) for size in sizes
    ):
        raise PlanError(f"{config.name}: config.json lacks the list window_sizes")
    windows = [size[0] + 1 if size[0] > 0 else None for size in sizes]
    own = config.section("per_layer_config") if "per_layer_config" in config else None
    layers = _by_window(config, windows)
    if own is None:
        return layers
    dims = [own.section(str(layer.depth)).positive("head_dim") for layer in layers]
    return tuple(
        Layer(layer.depth, msgspec.structs.replace(layer.cache, head_dim=dim))
        for layer, dim in zip(layers, dims, strict=True)
    )


def _by_window(config: Config, windows: Sequence[object]) -> tuple[Layer, ...]:
    config.one_per_layer(tuple(windows), "windows of layers")
    full = full_attention(config)
    return by_depth(
        sliding_window(config, window) if isinstance(window, int) and window > 0 else full
        for window in windows
    )


READERS: Final[dict[str, Reader]] = {
    "afmoe": Pattern(interval=4, field="global_attn_every_n_layers"),
    "cohere2": Pattern(interval=4, field="sliding_window_pattern", extra=1),
    "cohere2_moe": read_cohere2_moe,
    "cohere_compass_text": Pattern(interval=1),
    "cwm": Pattern(interval=4, first=True),
    "domyn_edge": read_domyn,
    "granite_swa": Pattern(interval=4, first=True),
    "granitemoe_swa": Pattern(interval=4, first=True),
    "kolibri1": Pattern(interval=5),
    "plamo3": read_plamo3,
    "olmo3": Pattern(interval=4),
    "muse_glimmer_text": Pattern(interval=4, from_end=True),
    "vaultgemma": Pattern(interval=2),
    # All layers are full where no list says which are windowed.
    **dict.fromkeys(("flint", "laguna", "mellum"), Pattern(interval=1)),
}


RNJ: Final = "Rnj1ForCausalLM"
"""Architecture that writes Gemma-3's type into its file, and names its layers by itself."""


def _names(config: Config, default_pattern: int) -> tuple[str, ...]:
    """``layer_types`` where given, else full attention at every n-th layer."""
    if names := config.strings("layer_types"):
        return names
    pattern = config.positive("sliding_window_pattern", default=default_pattern)
    return every(config, pattern, "full_attention", "sliding_attention")


def read_gemma2(config: Config) -> tuple[Layer, ...]:
    """Gemma-2: every second layer is full."""
    return _read(config, _names(config, 2), full_attention(config))


def read_gemma3(config: Config) -> tuple[Layer, ...]:
    """Gemma-3: every sixth layer is full."""
    if RNJ in (config.strings("architectures") or ()):
        return _read_rnj(config)
    both_ways = config.flag("use_bidirectional_attention")
    return _read(config, _names(config, 6), full_attention(config), both_ways=both_ways)


def _read_rnj(config: Config) -> tuple[Layer, ...]:
    """RNJ-1: chunks that look back by one are windowed; all other layers are full."""
    full = full_attention(config)
    window = sliding_window(config, config.positive("sliding_window"))
    known: dict[str, Cache | None] = {
        "chunked_attention": window,
        "sliding_attention": full,
        "full_attention": full,
    }
    return choose(config, _names(config, 6), "layer_types", known)


def read_gemma3n(config: Config) -> tuple[Layer, ...]:
    """Gemma-3n: every fifth layer is full; the last layers share caches."""
    return _without_shared(config, _read(config, _names(config, 5), full_attention(config)))


def read_gemma4(config: Config) -> tuple[Layer, ...]:
    """Gemma-4: full layers have heads of their own size; the last layers may share caches."""
    config.require("head_dim")
    heads = config.kv_heads
    if config.flag("attention_k_eq_v"):
        heads = config.optional("num_global_key_value_heads") or heads
    full = FullAttention(
        kv_heads=heads,
        head_dim=config.positive("global_head_dim", default=512),
        query_heads=config.query_heads,
    )
    names = (*_names(config, 6)[:-1], "full_attention")  # whatever the list says of the last one
    both_ways = config.get("use_bidirectional_attention") == "all"
    return _without_shared(config, _read(config, names, full, both_ways=both_ways))


def _without_shared(config: Config, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Leave out the last layers, which read caches of earlier ones."""
    own = config.num_layers - config.integer("num_kv_shared_layers", default=0)
    return tuple(layer for layer in layers if layer.depth < own)


def _read(
    config: Config, names: tuple[str, ...], full: FullAttention, *, both_ways: bool = False
) -> tuple[Layer, ...]:
    """Layers by name; attention in both directions sees half of the window on either side."""
    window = config.positive("sliding_window")
    known: dict[str, Cache | None] = {
        "sliding_attention": sliding_window(config, window // 2 + 1 if both_ways else window),
        "full_attention": full,
    }
    return choose(config, names, "layer_types", known)


def read_mimo(config: Config) -> tuple[Layer, ...]:
    """``hybrid_layer_pattern`` (1 is windowed) or ``layer_types``, else every sixth layer is full.

    Without a pattern the first layer is full too. Fields of windowed layers begin with ``swa_``.
    """
    config.require("head_dim")
    full = FullAttention(
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        value_dim=config.optional("v_head_dim"),
        query_heads=config.query_heads,
    )
    windowed = SlidingWindow(
        kv_heads=config.positive("swa_num_key_value_heads", default=full.kv_heads),
        head_dim=config.positive("swa_head_dim", default=full.head_dim),
        value_dim=config.optional("swa_v_head_dim", "v_head_dim"),
        query_heads=config.positive("swa_num_attention_heads", default=config.query_heads),
        window=config.positive("sliding_window_size", "sliding_window"),
    )
    if (pattern := config.integers("hybrid_layer_pattern")) is not None:
        config.one_per_layer(pattern, "hybrid_layer_pattern")
        return by_depth(windowed if kind == 1 else full for kind in pattern)
    names = config.strings("layer_types") or tuple(
        "full_attention" if depth == 0 or (depth + 1) % 6 == 0 else "sliding_attention"
        for depth in range(config.num_layers)
    )
    known: dict[str, Cache | None] = {"full_attention": full, "sliding_attention": windowed}
    return choose(config, names, "layer_types", known)


def read_step(config: Config) -> tuple[Layer, ...]:
    """``layer_types``, which may name the draft layers too; all layers are full without it."""
    config.require("num_attention_groups|num_key_value_heads")
    full = full_attention(config)
    names = config.strings("layer_types") or ("full_attention",) * config.num_layers
    names = names[: config.num_layers]
    known: dict[str, Cache | None] = {"full_attention": full}
    if window := config.optional("sliding_window"):
        query_heads = config.optional("num_sliding_attention_heads")
        if query_heads is None and config.get("attention_other_setting") is not None:
            query_heads = config.section("attention_other_setting").any_query_heads
        known["sliding_attention"] = msgspec.structs.replace(
            sliding_window(config, window), query_heads=query_heads or full.query_heads
        )
    return choose(config, names, "layer_types", known)
