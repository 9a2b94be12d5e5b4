"""Functions and tables that several readers of architectures share."""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Final

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import Cache, FullAttention, LatentAttention, SlidingWindow
from hybrid_blocks.model.model import Layer

Reader = Callable[[Config], tuple[Layer, ...]]
"""From a config to the layers of the main model."""

_NEW_NAMES: Final = {"mamba": "linear_attention", "attention": "full_attention"}
"""Names that transformers writes since version 5 where a family had one of its own."""


def full_attention(config: Config) -> FullAttention:
    """Read the model's plain attention."""
    return FullAttention(
        kv_heads=config.kv_heads, head_dim=config.head_dim, query_heads=config.any_query_heads
    )


def sliding_window(config: Config, window: int) -> SlidingWindow:
    """Read the model's attention, limited to a window."""
    return SlidingWindow(
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        query_heads=config.any_query_heads,
        window=window,
    )


def with_window(cache: SlidingWindow, windows: object, number: int) -> SlidingWindow:
    """Give a layer its window of a list; without a list, or behind its end, it keeps its own."""
    listed = windows[number] if isinstance(windows, list) and number < len(windows) else None
    if not isinstance(listed, int) or listed < 1:
        return cache
    return msgspec.structs.replace(cache, window=listed)


def latent_attention(config: Config) -> LatentAttention:
    """Multi-head latent attention."""
    return LatentAttention(
        latent_dim=config.positive("kv_lora_rank") + config.integer("qk_rope_head_dim"),
        query_heads=config.any_query_heads,
    )


FULL: Final = "full_attention"
WINDOWED: Final = "sliding_attention"


def used_window(config: Config) -> int | None:
    """Window of the model, None where it has none or does not use it."""
    used = config.flag("use_sliding_window", default=True)
    return config.optional("sliding_window") or None if used else None


def by_name(config: Config, names: Sequence[str], extra: int = 0) -> tuple[Layer, ...]:
    """Full layers and, if the model uses its window, windowed ones that read ``extra`` more."""
    known: dict[str, Cache | None] = {FULL: full_attention(config)}
    if window := used_window(config):
        known[WINDOWED] = sliding_window(config, window + extra)
    return choose(config, names, "layer_types", known)


def every(config: Config, interval: int, at_end: str, before: str) -> tuple[str, ...]:
    """Name of each layer where every ``interval``-th is ``at_end`` and the others ``before``."""
    return tuple(before if (depth + 1) % interval else at_end for depth in range(config.num_layers))


def by_depth(caches: Iterable[Cache | None]) -> tuple[Layer, ...]:
    """Give each cache its depth; None is a layer that keeps nothing."""
    return tuple(Layer(depth, cache) for depth, cache in enumerate(caches) if cache is not None)


def choose(
    config: Config, names: Sequence[str], field: str, known: dict[str, Cache | None]
) -> tuple[Layer, ...]:
    """Layers from a per-layer list of names."""
    config.one_per_layer(tuple(names), field)
    renamed = {_NEW_NAMES[name]: cache for name, cache in known.items() if name in _NEW_NAMES}
    known = renamed | known
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise PlanError(
            f"{config.name}: {field} names {', '.join(unknown)}; known are {', '.join(known)}"
        )
    return by_depth(known[name] for name in names)


def spread(counts: dict[str, int]) -> list[str]:
    """Interleave kinds evenly, for models that give only their counts.

    The i-th of n layers of a kind lies at (i + 1/2) / n of the depth.
    """
    places = [
        ((index + 0.5) / count, kind) for kind, count in counts.items() for index in range(count)
    ]
    return [kind for _, kind in sorted(places)]


TYPES: Final = tomllib.loads((files(__package__) / "types.toml").read_text())

UNREAD: Final = {name: reason for reason, names in TYPES["unread"].items() for name in names}
"""Reason by ``model_type``."""
