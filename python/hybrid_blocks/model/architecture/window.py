"""Windowed and full attention in a pattern that the class of the family brings along."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hybrid_blocks.model.architecture.common import (
    Reader,
    by_depth,
    choose,
    every,
    full_attention,
    sliding_window,
)
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.errors import PlanError
from hybrid_blocks.model.layer import Cache, SlidingWindow
from hybrid_blocks.model.model import Layer

FULL: Final = "full_attention"
WINDOWED: Final = "sliding_attention"


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
        config.require("num_hidden_layers")
        names = config.strings("layer_types") or tuple(self.names(config))
        known: dict[str, Cache | None] = {FULL: full_attention(config)}
        if window := used_window(config):
            known[WINDOWED] = self._windowed(config, window)
        return choose(config, names, "layer_types", known)

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

    def _windowed(self, config: Config, window: int) -> SlidingWindow:
        return sliding_window(config, window + self.extra)


def used_window(config: Config) -> int | None:
    """Window of the model, None where it has none or does not use it."""
    used = config.flag("use_sliding_window", default=True)
    return config.optional("sliding_window") or None if used else None


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
    if not isinstance(sizes, list) or not all(isinstance(size, list) and size for size in sizes):
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
    "muse_glimmer_text": Pattern(interval=4, from_end=True),
    "vaultgemma": Pattern(interval=2),
    # All layers are full where no list says which are windowed.
    **dict.fromkeys(("flint", "laguna", "mellum"), Pattern(interval=1)),
}
