"""Element sizes of the number formats that caches are stored in."""

from typing import Final

from hybrid_blocks.model.errors import PlanError

BYTES: Final = {
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


def canonical(name: str) -> str:
    """Return the long name of a number format (``bf16`` -> ``bfloat16``).

    Raises:
        PlanError: no such format.

    """
    full = _ALIASES.get(name, name.removeprefix("torch."))
    if full not in BYTES:
        raise PlanError(f"unknown dtype {name!r}; known: {', '.join(BYTES)}")
    return full


def size(name: str) -> int:
    """Bytes of one element."""
    return BYTES[canonical(name)]
