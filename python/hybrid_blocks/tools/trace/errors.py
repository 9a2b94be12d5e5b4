"""The errors of a trace, and what they show of a damaged line."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from hybrid_blocks.errors import HybridBlocksError

MOST_SHOWN: Final = 60
"""Bytes of a line that an error shows."""
_LONGEST_VALUE: Final = 40

_PLACE: Final = re.compile(r" - at `\$((?:\.\w+|\[\d+\])+)`$")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


class TraceError(HybridBlocksError, ValueError):
    """A trace that cannot be used as a whole."""


class DamagedLineError(TraceError):
    """One line of a trace file that does not hold what its format asks for.

    Attributes:
        path: the file.
        line: its line number, from 1.
        reason: what was wrong.
    """

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def shown(value: object) -> str:
    """Return a value as it stands in a line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def reason(error: Exception, line: bytes) -> str:
    """Say what is wrong with a line, and with which value: a field's, or the line's beginning."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        text = f"byte {error.object[error.start]:#04x} is not UTF-8"
    elif not isinstance(error, msgspec.DecodeError):
        return text
    if place := _PLACE.search(text):
        # The line behind the field may be damaged too.
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            return f"{text}: it is {shown(_at(place[1], line))}"
    return f"{text}; the line begins {beginning(line)}"


def beginning(line: bytes) -> str:
    """Return how a line begins, as text that a terminal can show."""
    text = line[:MOST_SHOWN].decode(errors="backslashreplace").strip()
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return shown + "…" * (len(line.strip()) > MOST_SHOWN)


def _at(place: str, line: bytes) -> Any:
    value = msgspec.json.decode(line)
    for name, index in _STEP.findall(place):
        value = value[name] if name else value[int(index)]
    return value
