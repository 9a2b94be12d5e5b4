"""The format of the cache that a checkpoint names for itself.

Follows ``get_kv_cache_quant_algo_string`` in ``vllm/utils/torch_utils.py`` (0.33) for ModelOpt, and
``Attention`` for compressed-tensors.
"""

from collections.abc import Mapping
from typing import Final

from hybrid_blocks.model.errors import PlanError

HF_QUANT_CONFIG: Final = "hf_quant_config.json"
"""Where older ModelOpt releases wrote what newer ones write into ``config.json``."""

_FORMATS: Final = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}

_LEGACY_ALGORITHMS: Final = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "MIXED_PRECISION",
)
"""Algorithms of a file without ``quant_method`` that vLLM takes for ModelOpt's."""


def kv_cache_dtype(fields: Mapping[str, object], name: str) -> str | None:
    """Return the format that ``auto`` stands for, None for the model's own.

    Raises:
        PlanError: a compressed-tensors format that vLLM refuses.

    """
    quantized = _section(fields, "quantization_config")
    if quantized:
        if _method(quantized).startswith("modelopt"):
            return _modelopt(quantized)
        if _method(quantized) == "compressed-tensors":
            return _compressed_tensors(quantized, name)
        return None
    for place in (_section(fields, "text_config").get("quantization_config"),
                  fields.get("compression_config")):  # fmt: skip
        if isinstance(place, Mapping) and _method(place) == "compressed-tensors":
            return _compressed_tensors(place, name)
    return None


def _section(fields: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = fields.get(key)
    return value if isinstance(value, Mapping) else {}


def _method(quantized: Mapping[str, object]) -> str:
    inner = _section(quantized, "quantization")
    is_modelopt = _section(quantized, "producer").get("name") == "modelopt"
    if (is_modelopt or "modelopt_quant_config" in inner) and (
        str(inner.get("quant_algo")).upper() in _LEGACY_ALGORITHMS
    ):
        return "modelopt"
    return str(quantized.get("quant_method") or "").lower().replace("_", "-")


def _modelopt(quantized: Mapping[str, object]) -> str | None:
    inner = _section(quantized, "quantization") or quantized
    named = (
        inner.get("kv_cache_scheme")
        or quantized.get("kv_cache_scheme")
        or inner.get("kv_cache_quant_algo")
        or quantized.get("kv_cache_quant_algo")
    )
    if isinstance(named, Mapping):
        if named.get("type") != "float":
            return None
        if named.get("num_bits") == 8 and named.get("dynamic") is False:
            return _FORMATS["fp8"]
        return _FORMATS["nvfp4"] if named.get("num_bits") == 4 else None
    return _FORMATS.get(named.lower()) if isinstance(named, str) else None


def _compressed_tensors(quantized: Mapping[str, object], name: str) -> str | None:
    scheme = quantized.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping):
        return None
    if (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
        raise PlanError(
            f"{name}: kv_cache_scheme asks for {scheme.get('num_bits')} bits of type "
            f"{scheme.get('type')}; vLLM takes 8 bits of type float from compressed-tensors"
        )
    return "fp8"
