"""Sizes as people write them: ``13.61GiB`` of memory, ``32k`` tokens."""

import re
from typing import Final

from hybrid_blocks.errors import InvalidArgumentError

_BINARY: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL: Final = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FACTORS: Final = {name.lower(): factor for name, factor in (_BINARY | _DECIMAL).items()}
_LEAST_WITHOUT_UNIT: Final = 1024
_MOST_BYTES: Final = 2**50
_MOST_TOKENS: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"([+-]?\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)")


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
        known = (*_BINARY, *_DECIMAL)
        meant = next((f"; did you mean {number}{it}?" for it in known if _is_short(unit, it)), "")
        raise InvalidArgumentError(
            f"{option} {text}: unknown unit {unit}; known are {', '.join(known)}{meant}"
        )
    whole, _, fraction = number.partition(".")
    nbytes: int = int(whole + fraction) * factor // 10 ** len(fraction)
    if nbytes <= 0:
        raise InvalidArgumentError(f"{option} must be positive: {text}")
    if nbytes > _MOST_BYTES:
        raise InvalidArgumentError(f"{option} {text}: more than the {human(_MOST_BYTES)} at most")
    if not unit and nbytes < _LEAST_WITHOUT_UNIT:
        raise InvalidArgumentError(
            f"{option} {number} has no unit and would be {human(nbytes)}; did you mean {number}GiB?"
        )
    return nbytes


def _is_short(unit: str, name: str) -> bool:
    """Tell ``Gi`` and ``G``, as Kubernetes and ``numfmt`` write them."""
    return name.lower() == f"{unit}b".lower()


def parse_count(text: str, what: str, most: int, *, least: int = 1) -> int:
    """Whole number of ``least`` to ``most``; ``what`` is how errors begin.

    Raises:
        InvalidArgumentError: it is none, or out of this range.
    """
    if not re.fullmatch(r"[+-]?\d{1,30}", text.strip()):
        raise InvalidArgumentError(f"{what} {text!r}: not a whole number")
    if not least <= (count := int(text)) <= most:
        raise InvalidArgumentError(
            f"{what} {count:,}: a number from {least:,} to {most:,} is needed"
        )
    return count


def parse_tokens(text: str) -> int:
    """Tokens of ``512``, ``4k`` (4,096) or ``1m``.

    Raises:
        InvalidArgumentError: not a positive whole number with an optional ``k`` or ``m``.
    """
    match = re.fullmatch(r"(\d{1,30})([kKmM]?)", text.strip())
    tokens = 0
    if match is not None:
        tokens = int(match[1]) * {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    if tokens == 0:
        raise InvalidArgumentError(f"{text!r} is no number of tokens; write for example 512 or 32k")
    if tokens > _MOST_TOKENS:
        raise InvalidArgumentError(f"{text!r} tokens: at most {_MOST_TOKENS:,}")
    return tokens


def short_tokens(tokens: int) -> str:
    """Tokens as `parse_tokens` takes them: ``16k`` where that is exact, else ``1,366``."""
    for unit, size in (("M", 2**20), ("k", 2**10)):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size:,}{unit}"
    return f"{tokens:,}"


def gib(nbytes: int) -> str:
    """Bytes as GiB with two digits, as vLLM logs them."""
    return f"{nbytes / 2**30:.2f} GiB"


def human(nbytes: int) -> str:
    """Bytes in the unit that leaves the fewest digits."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(nbytes) >= _BINARY[unit]:
            return f"{nbytes / _BINARY[unit]:.2f}".removesuffix(".00") + f" {unit}"
    return f"{nbytes} B"
