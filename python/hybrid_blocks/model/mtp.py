"""Layers of a head for multi-token prediction, as vLLM's classes build them.

Follows ``SpeculativeConfig.hf_config_override`` and the classes that it names (0.33). vLLM decides
by the outermost ``model_type`` whether a model has a head.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from hybrid_blocks.model.architecture.common import with_window
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import (
    Cache,
    FullAttention,
    LatentAttention,
    LatentIndex,
    SlidingWindow,
)
from hybrid_blocks.model.model import Layer

_Layers = tuple[Layer, ...]
_COUNT: Final = "num_nextn_predict_layers"
_FULL: Final = "full_attention"


class _Head(NamedTuple):
    """A family's head.

    ``caches`` are those of the head's layer of a number. ``field`` has the number of layers, which
    is ``default`` where it is absent, and vLLM builds ``most`` of them.
    """

    caches: Callable[[Config, _Layers, int], tuple[Cache, ...]]
    field: str = _COUNT
    default: int = 0
    most: int | None = None


def draft_layers(outer: Mapping[str, object], config: Config, layers: _Layers) -> _Layers:
    """Layers of the head, behind the last layer; none where vLLM has no class for it.

    ``outer`` are all fields of a ``config.json``, and ``config`` those of its decoder.
    """
    head = HEADS.get(str(outer.get("model_type")))
    if head is None:
        return ()
    count = config.layer_count(head.field, default=_outside(outer, head))
    if head.most is not None:
        count = min(count, head.most)
    return tuple(
        Layer(config.num_layers + number, cache, draft=True)
        for number in range(count)
        for cache in head.caches(config, layers, number)
    )


def _outside(outer: Mapping[str, object], head: _Head) -> int:
    """Return the number that stands beside the decoder's section, else the default."""
    value = outer.get(head.field)
    return value if isinstance(value, int) and value >= 0 else head.default


def _last(_config: Config, layers: _Layers, _number: int) -> tuple[Cache, ...]:
    """Return the cache of the last layer whose attention grows.

    A layer of the head chooses for itself, even where the last layer takes another's choice.
    """
    growing = _of_kind(layers[::-1], FullAttention | LatentAttention)
    index = _of_kind(layers, LatentIndex)
    if not index:
        return growing
    return (*(msgspec.structs.replace(cache, leads=True) for cache in growing), *index)


def _of_kind(layers: _Layers, kind: Any) -> tuple[Any, ...]:
    """Return the first cache of a kind, or nothing."""
    return next(((layer.cache,) for layer in layers if isinstance(layer.cache, kind)), ())


def _by_pattern(config: Config, layers: _Layers, number: int) -> tuple[Cache, ...]:
    """Nemotron: the pattern of the head says how many of its layers attend."""
    pattern = config.text("mtp_hybrid_override_pattern", "*E")
    return _last(config, layers, number) * pattern.count("*")


def _windowed(_config: Config, layers: _Layers, _number: int) -> tuple[Cache, ...]:
    """MiMo-V2: the head's layer has a window."""
    return _of_kind(layers, SlidingWindow)


def _named_behind(config: Config, layers: _Layers, number: int) -> tuple[Cache, ...]:
    """Step-3.5: ``layer_types`` goes on behind the last layer."""
    names = config.strings("layer_types") or ()
    depth = config.num_layers + number
    is_full = depth >= len(names) or names[depth] == _FULL
    return _last(config, layers, number) if is_full else _of_kind(layers, SlidingWindow)


def _named_apart(config: Config, layers: _Layers, number: int) -> tuple[Cache, ...]:
    """EXAONE: lists of the head's own, else the layer of the model with the same number."""
    names = config.strings("mtp_layer_types")
    if names is None:
        return tuple(layer.cache for layer in layers if layer.depth == number)
    if number >= len(names) or names[number] == _FULL:
        return _last(config, layers, number)
    windows = config.get("mtp_sliding_windows") or config.get("sliding_windows")
    return tuple(with_window(cache, windows, number) for cache in _of_kind(layers, SlidingWindow))


_LISTED: Final = _Head(_last)
_QWEN: Final = _Head(_last, "mtp_num_hidden_layers", default=1)
_EXAONE: Final = _Head(_named_apart, default=1)

HEADS: Final[Mapping[str, _Head]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "pangu_ultra_moe", "kimi_k3"),
                *("mimo", "glm4_moe", "glm4_moe_lite", "glm_ocr", "ernie4_5_moe", "hy_v3"),
                *("bailing_hybrid", "bailing_moe_v3", "bailing_moe_v3_vl"),
                *("bailing_moe_linear", "bailing_moe_v2_5"),
            ),
            _LISTED,
        ),
        **dict.fromkeys(
            (
                *("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
                *("qwen4_exp", "qwen4_exp_text", "intern_s2_preview", "interns2_mobius"),
            ),
            _QWEN,
        ),
        "qwen3_next": _Head(_last, default=1),
        "longcat_flash": _Head(_last, default=1, most=1),
        **dict.fromkeys(
            (
                *("nemotron_h", "nemotron_h_puzzle", "nemotron_h_omni"),
                "NemotronH_Super_Omni_Reasoning_V3",
            ),
            _Head(_by_pattern, most=1),
        ),
        **dict.fromkeys(
            ("mimo_v2", "mimo_v2_flash", "mimovl"), _Head(_windowed, default=1, most=1)
        ),
        **dict.fromkeys(("step3p5", "step3p7"), _Head(_named_behind, default=1)),
        **dict.fromkeys(("exaone_moe", "exaone4_5"), _EXAONE),
    }
)
"""Heads by the outermost ``model_type``."""
