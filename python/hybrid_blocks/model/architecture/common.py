"""Functions and tables that several readers of architectures share."""

from collections.abc import Callable, Iterable, Sequence
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


_LATENTS: Final = (
    "the planner has no kind for latents of 4 or 128 tokens (vLLM's MLAAttentionSpec with "
    "tokens_per_state), and none for windows over latents (SlidingWindowMLASpec)"
)
_COMPRESSED: Final = (
    "the planner has no kind for keys of several tokens (vLLM's tokens_per_state) beside a ring of "
    "those before them (CircularBufferSpec)"
)
_ENCODER: Final = "cross attention keeps an encoder's output, whose length no config.json says"
_INDEXER: Final = "an indexer keeps a cache of its own beside the latent, which is not counted yet"
_KEYS: Final = "an indexer keeps keys of its own beside keys and values, which are not counted yet"
_RING: Final = "convolutions keep a ring of tokens beside attention, which is not counted yet"
_HEARS: Final = "its encoder of sound keeps a cache too, which is not counted yet"
_PROMPT: Final = "tokens behind the window are kept for the prompt alone, which is not counted"

UNREAD: Final = {
    "PanguProMoE": "sink tokens keep blocks of their own, which are not counted yet",
    "cohere_asr": _ENCODER,
    "deepseek_v4": _LATENTS,
    "deepseek_v41": _LATENTS,
    "dots3_note": "windows over latents are not counted yet",
    "glm5_next_text": _COMPRESSED,
    "hy_v4": _INDEXER,
    "inkling_model": _RING,
    "inkling_text": _RING,
    "minimax_m3_text": _KEYS,
    "minimax_m3_vl_text": _KEYS,
    "mbart": _ENCODER,
    "muse_spark_text": "no configuration of this family was compared with vLLM",
    "nemotron_parse": _ENCODER,
    "nemotron_parse3_5": _ENCODER,
    "step5": _COMPRESSED,
    "unlimited-ocr": _PROMPT,
    "unlimited_ocr": _PROMPT,
    "voxtral_realtime": _HEARS,
    "voxtral_realtime_text": _HEARS,
    "whisper": _ENCODER,
}
"""Reason by ``model_type``."""
