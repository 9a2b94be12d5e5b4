"""Sizes as people write them: ``13.61GiB`` of memory, ``32k`` tokens."""

import re
from typing import Final

from hybrid_blocks.errors import InvalidArgumentError

_BINARY: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL: Final = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FACTORS: Final = {name.lower(): factor for name, factor in (_BINARY | _DECIMAL).items()}
_LEAST_WITHOUT_UNIT: Final = 1024
_NUMBER: Final = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_memory(text: str, option: str = "--memory") -> int:
    """Bytes of ``13.61GiB`` (powers of two), ``13GB`` (powers of ten) or ``4096``, rounded down.

    A number below 1024 needs a unit, if only ``B``.

    ``option`` is what errors call it.

    Raises:
        InvalidArgumentError: no number, an unknown or forgotten unit, or less than one byte.

    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(f"{option} {text!r} is no size; write for example 24GiB or 13GB")
    number, unit = match.groups()
    factor = _FACTORS.get(unit.lower() or "b")
    if factor is None:
        known = ", ".join((*_BINARY, *_DECIMAL))
        raise InvalidArgumentError(f"{option} {text}: unknown unit {unit}; known are {known}")
    whole, _, fraction = number.partition(".")
    nbytes: int = int(whole + fraction) * factor // 10 ** len(fraction)
    if nbytes <= 0:
        raise InvalidArgumentError(f"{option} must be positive: {text}")
    if not unit and nbytes < _LEAST_WITHOUT_UNIT:
        raise InvalidArgumentError(
            f"{option} {number} has no unit and would be {human(nbytes)}; did you mean {number}GiB?"
        )
    return nbytes


def parse_tokens(text: str) -> int:
    """Tokens of ``512``, ``4k`` (4,096) or ``1m``.

    Raises:
        InvalidArgumentError: not a positive whole number with an optional ``k`` or ``m``.

    """
    match = re.fullmatch(r"(\d+)([kKmM]?)", text.strip())
    tokens = 0
    if match is not None:
        tokens = int(match[1]) * {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    if tokens == 0:
        raise InvalidArgumentError(f"{text!r} is no number of tokens; write for example 512 or 32k")
    return tokens


def gib(nbytes: int) -> str:
    """Bytes as GiB with two digits, as vLLM logs them."""
    return f"{nbytes / 2**30:.2f} GiB"


def human(nbytes: int) -> str:
    """Bytes in the unit that leaves the fewest digits."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(nbytes) >= _BINARY[unit]:
            return f"{nbytes / _BINARY[unit]:.2f}".removesuffix(".00") + f" {unit}"
    return f"{nbytes} B"
