"""A model's weights, as far as they take memory."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from hybrid_blocks.model import dtype
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.errors import PlanError
from hybrid_blocks.model.model import Layer, Weights
from hybrid_blocks.model.weights.parameters import Parameters, count_parameters
from hybrid_blocks.model.weights.weight_format import bits_of_config

_HIDDEN: Final = 5120
_VOCABULARY: Final = 200_000
"""Tokens of most vocabularies of today; embeddings stay unquantized, so they count apart."""
_BILLION: Final = 10**9
_OF_NAME: Final = re.compile(r"(?<![\d.A-Za-z])(\d+(?:\.\d+)?)([BTMbtm])(?![a-z])")
_UNITS: Final = {"b": _BILLION, "t": 1000 * _BILLION, "m": _BILLION // 1000}

_PUBLISHED: Final = {
    "DeepSeek-V3": 671.0,
    "Gemma-3-27B": 27.4,
    "Gemma-4-E2B": 5.1,
    "Granite-4.0-H-Micro": 3.2,
    "Granite-4.0-H-Small": 32.2,
    "Granite-4.0-H-Tiny": 6.9,
    "Granite-4.0-Micro": 3.4,
    "Jamba-1.5-Large": 398.6,
    "Jamba-1.5-Mini": 51.6,
    "Llama-4-Scout-17B-16E": 108.6,
    "MiniMax-Text-01": 456.0,
    "Mistral-7B-v0.1": 7.24,
    "Phi-3-mini-4k": 3.82,
    "Phi-4": 14.7,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
}
"""Billions of parameters that publishers name, where a model's name does not say or is short."""

_EXPERTS: Final = {"gpt-oss-20b": (19.1, 4.25), "gpt-oss-120b": (114.7, 4.25)}
"""Billions of parameters of experts that are published in another format, and their bits."""

_BITS: Final = {"DeepSeek-V3": 8.0}
"""Bits in which the publisher stores all weights but the embeddings."""


def weights_of(
    config: Config,
    layers: tuple[Layer, ...],
    model_type: str,
    fields: Mapping[str, object],
    *,
    built_in: bool,
) -> Weights | str:
    """Return a model's weights, or why neither its fields nor its name tell their number."""
    quantized = fields.get("quantization_config")
    if not isinstance(quantized, Mapping):
        quantized = {}
    counted: Parameters | None = None
    source, unknown, bits = "counted from config.json", "", bits_of_config(quantized)
    try:
        counted = count_parameters(config, layers, model_type)
    except PlanError as error:
        unknown = str(error).removeprefix(f"{config.name}: ")
    only_experts = quantized.get("quant_method") == "mxfp4"
    if counted is None and built_in:
        counted, source = _published(config)
        unknown = "its publisher names none"
        bits = _EXPERTS[config.name][1] if config.name in _EXPERTS else _BITS.get(config.name)
        only_experts = config.name in _EXPERTS
    if counted is None:
        return unknown
    return Weights(
        embeddings=counted.embeddings,
        experts=counted.experts,
        rest=counted.rest,
        hidden_size=counted.hidden_size,
        bits=bits,
        only_experts=only_experts,
        source=source,
    )


def _published(config: Config) -> tuple[Parameters | None, str]:
    billions, source = _PUBLISHED.get(config.name), "published"
    if billions is None:
        found = _OF_NAME.search(config.name)
        if found is None:
            return None, ""
        total, source = int(float(found[1]) * _UNITS[found[2].lower()]), "by its name"
    else:
        total = int(billions * _BILLION)
    experts = int(_EXPERTS.get(config.name, (0.0,))[0] * _BILLION)
    hidden = config.optional("hidden_size") or _HIDDEN
    embeddings = min(2 * _VOCABULARY * hidden, (total - experts) // 3)
    counted = Parameters(
        embeddings=embeddings,
        experts=experts,
        rest=total - experts - embeddings,
        hidden_size=hidden,
    )
    return counted, source


def with_bits(weights: Weights | None, bits: float | None) -> Weights | None:
    """Return the weights in another format; both may be unknown."""
    if weights is None or bits is None or weights.only_experts:
        return weights
    return msgspec.structs.replace(weights, bits=bits)


def weight_bytes(weights: Weights, model_dtype: str) -> int:
    """Bytes of all weights; embeddings stay in the model's own format."""
    own = 8 * dtype.size(model_dtype)
    bits = weights.bits or own
    rest = own if weights.only_experts else bits
    total = weights.embeddings * own + weights.experts * bits + weights.rest * rest
    return int(total / 8)
