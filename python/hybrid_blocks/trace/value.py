"""A value of a damaged line, for the error that names the line."""

import re
from contextlib import suppress
from typing import Any, Final

import msgspec

from hybrid_blocks.trace.nearest import beginning

_MOST_SHOWN: Final = 40

_PLACE: Final = re.compile(r" - at `\$((?:\.\w+|\[\d+\])+)`$")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def shown(value: object) -> str:
    """Return a value as it stands in a line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def reason(error: Exception, line: bytes) -> str:
    """Say what is wrong with a line, and with which value: a field's, or the line's beginning."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        text = f"byte {error.object[error.start]:#04x} is not UTF-8"
    elif not isinstance(error, msgspec.DecodeError):
        return text
    if place := _PLACE.search(text):
        # What stands behind the field may be damaged too.
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            return f"{text}: it is {shown(_at(place[1], line))}"
    return f"{text}; the line begins {beginning(line)}"


def _at(place: str, line: bytes) -> Any:
    value = msgspec.json.decode(line)
    for name, index in _STEP.findall(place):
        value = value[name] if name else value[int(index)]
    return value
