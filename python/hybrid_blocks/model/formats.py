"""Number formats of caches: bytes of an element, of a head and of a latent; a checkpoint's own.

Some formats of keys and values pack several elements into a byte, or keep scales beside each token.
So bytes belong to a head, not to an element. The formats are those of vLLM 0.33;
`checkpoint_format` follows its ``get_kv_cache_quant_algo_string`` for ModelOpt, and ``Attention``
for compressed-tensors.
"""

from collections.abc import Callable, Mapping
from typing import Final

from hybrid_blocks.arithmetic import ceil_div, round_up
from hybrid_blocks.errors import PlanError

ELEMENT_BYTES: Final = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "int8": 1,
}

_ALIASES: Final = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


def canonical_dtype(name: str) -> str:
    """Return the long name of a number format (``bf16`` -> ``bfloat16``)."""
    full = _ALIASES.get(name, name.removeprefix("torch."))
    if full not in ELEMENT_BYTES:
        raise PlanError(f"unknown dtype {name!r}; known: {', '.join(ELEMENT_BYTES)}")
    return full


def element_bytes(name: str) -> int:
    """Bytes of one element."""
    return ELEMENT_BYTES[canonical_dtype(name)]


LATENT_BLOBS: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of a token's latent with its rotary part and scales, whatever their widths."""

_SCALE: Final = 4
"""Bytes of the scale that a per-token-head format keeps beside keys, and beside values."""

_HADAMARD: Final = 64
"""Elements that Octave transforms, and scales, together."""


def _per_token_head(elements_per_byte: int) -> Callable[[int, int], int]:
    return lambda key, value: key // elements_per_byte + value // elements_per_byte + 2 * _SCALE


def _nvfp4(key: int, value: int) -> int:
    """Two elements a byte, and a scale of one byte for each 16 elements."""
    if key != value:
        raise PlanError(f"nvfp4 needs keys and values of one width, not {key} and {value}")
    return 2 * (key // 2 + key // 16)


def _turboquant(key_bits: int, value_bits: int) -> Callable[[int, int], int]:
    """Codes; a norm (fp16) of keys but for fp8 ones, scale and zero of values; made even."""

    def size(key: int, _: int) -> int:
        keys = key if key_bits == 8 else ceil_div(key * key_bits, 8) + 2
        return round_up(keys + ceil_div(key * value_bits, 8) + 4, 2)

    return size


def _ultraquant(key: int, _: int) -> int:
    """Two elements a byte, and a scale of one byte for each 32 elements."""
    if key % 32:
        raise PlanError(f"ultraquant_4bit takes heads of a multiple of 32 elements, not {key}")
    return 2 * (key // 2 + key // 32)


def _octave_compact(key: int, _: int) -> int:
    """3 bits an element, one scale for keys and one for values."""
    return round_up(key * 3 // 8 + key * 3 // 8 + 2 * 2, 4)


_PACKED: Final[dict[str, Callable[[int, int], int]]] = {
    "int4_per_token_head": _per_token_head(2),
    "int8_per_token_head": _per_token_head(1),
    "fp8_per_token_head": _per_token_head(1),
    "nvfp4": _nvfp4,
    "nvfp4_4over6": _nvfp4,
    "turboquant_k8v4": _turboquant(8, 4),
    "turboquant_4bit_nc": _turboquant(4, 4),
    "turboquant_k3v4_nc": _turboquant(3, 4),
    "turboquant_3bit_nc": _turboquant(3, 3),
    "ultraquant_4bit": _ultraquant,
    "octave_k3v3_compact": _octave_compact,
}
"""Bytes of a token's key and value in one head, by the widths of both."""

_OCTAVE_VALUE_BITS: Final = {"octave_k3v4": 4, "octave_k3v3": 3}

KNOWN: Final = (*ELEMENT_BYTES, *_PACKED, *_OCTAVE_VALUE_BITS, *LATENT_BLOBS)

BOUNDARY_LAYERS: Final = 2
"""First and last layers that some formats leave in the model's own, in a model without states."""

ULTRAQUANT_BLOCK_TOKENS: Final = 64


def canonical(name: str) -> str:
    """Return the name that vLLM has for a format."""
    if name in KNOWN:
        return name
    try:
        return canonical_dtype(name)
    except PlanError:
        raise PlanError(f"unknown dtype {name!r} of the cache; known: {', '.join(KNOWN)}") from None


def spares_boundary_layers(name: str) -> bool:
    """Whether vLLM keeps the first and the last layers of an attention model in its own format."""
    return name.startswith(("turboquant_", "ultraquant_"))


def head_bytes(name: str, key_dim: int, value_dim: int, rotary_share: float) -> int:
    """Bytes of one token's key and value in one head."""
    if name in LATENT_BLOBS:
        raise PlanError(f"--kv-cache-dtype {name} is a format of latent attention")
    if packed := _PACKED.get(name):
        return packed(key_dim, value_dim)
    if bits := _OCTAVE_VALUE_BITS.get(name):
        rotary = int(key_dim * rotary_share)
        if key_dim % _HADAMARD or rotary % _HADAMARD:
            raise PlanError(
                f"--kv-cache-dtype {name} takes heads and rotary parts of a multiple of "
                f"{_HADAMARD} elements, not {key_dim} and {rotary}"
            )
        codes = rotary * 4 // 8 + (key_dim - rotary) * 3 // 8 + key_dim * bits // 8
        return round_up(codes + 2 * (key_dim // _HADAMARD + 1), 8)
    return (key_dim + value_dim) * element_bytes(name)


def latent_bytes(name: str, latent_dim: int, *, sparse: bool = False) -> int:
    """Bytes of one token's latent; kernels of sparse latents have an fp8 format of their own."""
    if sparse and name in ELEMENT_BYTES and element_bytes(name) == 1:
        name = "fp8_ds_mla"
    if name in LATENT_BLOBS:
        return LATENT_BLOBS[name]
    if name in _PACKED or name in _OCTAVE_VALUE_BITS:
        raise PlanError(f"--kv-cache-dtype {name}: no kernel for latent attention takes it")
    return latent_dim * element_bytes(name)


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


def checkpoint_format(fields: Mapping[str, object], name: str) -> str | None:
    """Return the format that ``auto`` stands for, None for the model's own."""
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
