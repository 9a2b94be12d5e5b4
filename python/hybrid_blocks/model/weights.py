"""Bytes of a model's weights: an estimate."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model import formats
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.model import Layer, Weights
from hybrid_blocks.model.parameters import count_parameters
from hybrid_blocks.model.table import entries

_SCALE: Final = 16
_GROUP: Final = 128
_BITS: Final = {
    "fp8": 8.0,
    "modelopt": 8.0,
    "fbgemm_fp8": 8.0,
    "ptpc_fp8": 8.0,
    "mxfp4": 4.25,
    "gpt_oss_mxfp4": 4.25,
    "nvfp4": 4.5,
    "modelopt_fp4": 4.5,
    "bitsandbytes": 4.5,
    "mxfp8": 8.25,
}
_NAMED: Final = (
    (re.compile(r"nvfp4|fp4", re.IGNORECASE), 4.5),
    (re.compile(r"mxfp4", re.IGNORECASE), 4.25),
    (re.compile(r"fp8|int8|w8a8|w8a16|8bit", re.IGNORECASE), 8.0),
    (re.compile(r"int4|awq|gptq|w4a16|4bit|autoround|bnb", re.IGNORECASE), 4.15),
    # GGUF: those of its K formats, M where there are several.
    *(
        (re.compile(rf"\bi?q{number}_", re.IGNORECASE), bits)
        for number, bits in ((2, 3.2), (3, 4.0), (4, 4.9), (5, 5.7), (6, 6.6), (8, 8.5))
    ),
)


_ENDING: Final = re.compile(
    r"[-_.](?:fp8|nvfp4|mxfp4|fp4|int[48]|awq|gptq|w\d+a\d+|bnb|gguf|quantized|autoround|qat|exl\d|"
    r"\dbit|mlx|dynamic|i?q\d_\w+)\b.*",
    re.IGNORECASE,
)


def without_format(name: str) -> str:
    """Return the name of a checkpoint without the ending that tells the format of its weights."""
    return _ENDING.sub("", name)


def bits_of_config(quantized: Mapping[str, Any]) -> float | None:
    """Bits that ``quantization_config`` names, None where it is not known."""
    method = str(quantized.get("quant_method") or "").lower().replace("-", "_")
    inner = quantized.get("quantization")
    algorithm = str(
        quantized.get("quant_algo")
        or (inner.get("quant_algo") if isinstance(inner, Mapping) else "")
        or ""
    ).upper()
    if algorithm:
        return 4.5 if "FP4" in algorithm else 8.0 if "8" in algorithm else 4.15
    if method == "compressed_tensors":
        return _of_groups(quantized)
    if (bits := quantized.get("bits") or quantized.get("w_bit")) is not None:
        group = quantized.get("group_size") or quantized.get("q_group_size") or _GROUP
        return _with_scales(float(bits), int(group))
    if quantized.get("load_in_8bit"):
        return 8.0
    return _BITS.get(method)


def bits_of_name(name: str) -> float | None:
    """Bits that the name of a checkpoint, or of an option, tells."""
    if (known := _BITS.get(name.lower())) is not None:
        return known
    if re.search("mxfp4", name, re.IGNORECASE):
        return _BITS["mxfp4"]
    return next((bits for pattern, bits in _NAMED if pattern.search(name)), None)


def _of_groups(quantized: Mapping[str, Any]) -> float | None:
    groups = quantized.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        of_weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(of_weights, Mapping) or not of_weights.get("num_bits"):
            continue
        bits = float(of_weights["num_bits"])
        if bits == 4 and of_weights.get("type") == "float":
            return _BITS["nvfp4"]
        size = of_weights.get("group_size")
        return _with_scales(bits, int(size)) if size and int(size) > 0 else bits
    return None


def _with_scales(bits: float, group: int) -> float:
    """Add a scale, and for packed integers a zero point, for each group of weights."""
    if group <= 0 or bits >= 8:
        return bits
    return bits + (_SCALE + bits) / group


_HIDDEN: Final = 5120
_VOCABULARY: Final = 200_000
"""Tokens of most vocabularies of today; embeddings stay unquantized, so they count apart."""
_BILLION: Final = 10**9
_OF_NAME: Final = re.compile(r"(?<![\d.A-Za-z])(\d+(?:\.\d+)?)([BTMbtm])(?![a-z])")
_UNITS: Final = {"b": _BILLION, "t": 1000 * _BILLION, "m": _BILLION // 1000}


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
    try:
        counted = count_parameters(config, layers, model_type)
    except PlanError as error:
        if built_in:
            return _published(config) or "its publisher names none"
        return str(error).removeprefix(f"{config.name}: ")
    return msgspec.structs.replace(
        counted,
        bits=bits_of_config(quantized),
        only_experts=quantized.get("quant_method") == "mxfp4",
    )


def _published(config: Config) -> Weights | None:
    published = entries()[config.name].published
    if published is not None:
        total, experts = (int(it * _BILLION) for it in (published.billions, published.experts))
        source = "published"
    elif found := _OF_NAME.search(config.name):
        total, experts = int(float(found[1]) * _UNITS[found[2].lower()]), 0
        source = "by its name"
    else:
        return None
    hidden = config.optional("hidden_size") or _HIDDEN
    embeddings = min(2 * _VOCABULARY * hidden, (total - experts) // 3)
    return Weights(
        embeddings=embeddings,
        experts=experts,
        rest=total - experts - embeddings,
        hidden_size=hidden,
        bits=None if published is None else published.bits,
        only_experts=experts > 0,
        source=source,
    )


def with_bits(weights: Weights | None, bits: float | None) -> Weights | None:
    """Return the weights in another format; both may be unknown."""
    if weights is None or bits is None or weights.only_experts:
        return weights
    return msgspec.structs.replace(weights, bits=bits)


def weight_bytes(weights: Weights, model_dtype: str) -> int:
    """Bytes of all weights; embeddings stay in the model's own format."""
    own = 8 * formats.element_bytes(model_dtype)
    bits = weights.bits or own
    rest = own if weights.only_experts else bits
    total = weights.embeddings * own + weights.experts * bits + weights.rest * rest
    return int(total / 8)
