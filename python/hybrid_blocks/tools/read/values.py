"""The value of one option, converted as vLLM converts it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.read.options import Option, recorded, shown

DEEPEST: Final = 32
"""Levels of a nested value, and keys of a dotted option."""

_LARGEST: Final = 2**63 - 1
_SCALARS: Final = (str, int, float, type(None))
_COUNT: Final = re.compile(r"(\d+)(\.\d+)?([kKmMgGtT])")
_POWERS: Final = "kmgt"


def read(option: Option, flag: str, given: Sequence[str]) -> Any:
    """Convert the words behind a flag."""
    if option.takes == "nothing":
        if given:
            raise PlanError(f"{flag} takes no value")
        return flag not in option.off
    if not given and option.takes != "maybe":
        raise PlanError(f"{flag} lacks its value")
    converted = [_convert(option, flag, text) for text in given]
    if option.takes == "many":
        return converted
    return converted[0] if converted else True


def count(text: str) -> int:
    """Number of ``32768``, ``32k`` (32,000), ``32K`` (32,768) or ``25.6k``.

    Raises:
        ValueError: none of these, or more than 63 bits hold.
    """
    text = text.strip()
    match = _COUNT.fullmatch(text)
    if match is None:
        return _bounded(int(text))
    whole, fraction, unit = match.groups()
    power = _POWERS.index(unit.lower()) + 1
    if unit.islower():
        # A float of more than 63 bits may be infinite.
        _bounded(int(whole))
        return _bounded(int(float(whole + (fraction or "")) * int(1000**power)))
    if fraction:
        raise ValueError("a power of 1,024 takes whole numbers alone")
    return _bounded(int(whole) * 1024**power)


def loose(text: str) -> Any:
    """Value of a dotted option: JSON, a number with a unit, or else text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return count(text)
    except ValueError:
        return text


def _bounded(number: int) -> int:
    if abs(number) > _LARGEST:
        raise ValueError("more than 63 bits")
    return number


def _convert(option: Option, flag: str, text: str) -> Any:
    if text in {"", "None"} and option.default is None and option.kind != "switch":
        return None
    if option.choices and text not in option.choices:
        raise PlanError(
            f"{flag} {shown(text)}: vLLM {recorded().release} takes {', '.join(option.choices)}"
        )
    if option.kind == "object":
        return _fits(option, flag, _object(flag, text))
    try:
        return _CONVERSIONS.get(option.kind, str)(text)
    except (ValueError, OverflowError):
        raise PlanError(f"{flag} {shown(text)!r} is no {_NAMES[option.kind]}") from None


def _length(text: str) -> int:
    return -1 if text.strip().lower() in {"-1", "auto"} else count(text)


def _integer(text: str) -> int:
    return _bounded(int(text))


_CONVERSIONS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {"integer": _integer, "count": count, "length": _length, "number": float}
)
_NAMES: Final = {
    "integer": "whole number of up to 63 bits",
    "count": "number of tokens or bytes; write for example 8192, 8k (8,000) or 8K (8,192)",
    "length": "length; write for example 32768, 32k (32,000), 32K (32,768) or auto",
    "number": "number",
}


def _fits(option: Option, flag: str, value: object) -> Any:
    """Refuse what is no object of the class that an option takes."""
    if not option.keys:
        return value
    if not isinstance(value, dict):
        raise PlanError(f"{flag}: vLLM takes a JSON object, or keys as {flag}.KEY VALUE")
    for key, given in value.items():
        if key not in option.keys:
            found = get_close_matches(key, option.keys, n=3)
            near = f"; near it: {', '.join(found)}" if found else ""
            raise PlanError(f"{flag}: vLLM knows no key {shown(key)}{near}")
        numbers = option.keys[key]
        if numbers and isinstance(given, int) and given not in numbers:
            raise PlanError(
                f"{flag}.{key} {shown(given)}: vLLM takes {', '.join(map(str, numbers))}"
            )
    return value


def _object(flag: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if text.lstrip().startswith(("{", "[")):
            quotes = "" if '"' in text else "; write its names in double quotes, all in single ones"
            raise PlanError(f"{flag}: no JSON: {error}{quotes}") from None
        return text
    except (ValueError, RecursionError):
        raise PlanError(
            f"{flag}: its JSON holds too long a number, or is nested too deep"
        ) from None
    check_nested(flag, value)
    return value


def check_nested(flag: str, value: object) -> None:
    """Refuse lists and objects that are nested too deep, and numbers beyond 63 bits in them."""
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        if any(isinstance(one, int) and abs(one) > _LARGEST for one in level):
            raise PlanError(f"{flag}: its JSON holds a number of more than 63 bits")
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for many in inner if not isinstance(many, _SCALARS) for one in many]
    if level:
        raise PlanError(f"{flag}: its JSON is nested more than {DEEPEST} levels deep")
