"""Values that no option takes."""

import math
from collections.abc import Sequence
from typing import TypeVar

import typer

from hybrid_blocks.errors import InvalidArgumentError

T = TypeVar("T")

MOST_RUNNING = 2**16
"""Requests that a command runs at a time, at most."""


def finite(param: typer.CallbackParam, value: float | None) -> float | None:
    """Refuse infinity, and what is no number and so within any range.

    Raises:
        InvalidArgumentError: it is one of them.

    """
    if value is not None and not math.isfinite(value):
        raise InvalidArgumentError(f"{param.opts[-1]} {value}: a finite number is needed")
    return value


def each_once(option: str, values: Sequence[T]) -> Sequence[T]:
    """Refuse what is named twice: its second figures would be those of the first.

    Raises:
        InvalidArgumentError: a value occurs twice.

    """
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InvalidArgumentError(f"{option} names {value} twice")
    return values
