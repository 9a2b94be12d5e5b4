"""The formats in which vLLM 0.33 stores keys and values, and the bytes of a head in each.

Some formats pack several elements into a byte, or keep scales beside each token; so bytes belong to
a head, not to an element.
"""

from collections.abc import Callable
from typing import Final

from hybrid_blocks.arithmetic import ceil_div, round_up
from hybrid_blocks.model import dtype
from hybrid_blocks.model.errors import PlanError

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

KNOWN: Final = (*dtype.BYTES, *_PACKED, *_OCTAVE_VALUE_BITS, *LATENT_BLOBS)

BOUNDARY_LAYERS: Final = 2
"""First and last layers that some formats leave in the model's own, in a model without states."""

ULTRAQUANT_BLOCK_TOKENS: Final = 64


def canonical(name: str) -> str:
    """Return the name that vLLM has for a format.

    Raises:
        PlanError: no such format.

    """
    if name in KNOWN:
        return name
    try:
        return dtype.canonical(name)
    except PlanError:
        raise PlanError(f"unknown dtype {name!r} of the cache; known: {', '.join(KNOWN)}") from None


def spares_boundary_layers(name: str) -> bool:
    """Whether vLLM keeps the first and the last layers of an attention model in its own format."""
    return name.startswith(("turboquant_", "ultraquant_"))


def head_bytes(name: str, key_dim: int, value_dim: int, rotary_share: float) -> int:
    """Bytes of one token's key and value in one head.

    Raises:
        PlanError: the format is one of latent attention, or does not take these widths.

    """
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
    return (key_dim + value_dim) * dtype.size(name)


def latent_bytes(name: str, latent_dim: int, *, sparse: bool = False) -> int:
    """Bytes of one token's latent. Kernels that read a few tokens have an fp8 format of their own.

    Raises:
        PlanError: no kernel for latent attention takes the format.

    """
    if sparse and name in dtype.BYTES and dtype.size(name) == 1:
        name = "fp8_ds_mla"
    if name in LATENT_BLOBS:
        return LATENT_BLOBS[name]
    if name in _PACKED or name in _OCTAVE_VALUE_BITS:
        raise PlanError(f"--kv-cache-dtype {name}: no kernel for latent attention takes it")
    return latent_dim * dtype.size(name)
