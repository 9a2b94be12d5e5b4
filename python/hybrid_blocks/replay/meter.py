"""How long the manager takes."""

from array import array
from collections.abc import Callable
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Meter:
    """Nanoseconds spent in the manager, step by step.

    Attributes:
        steps: one entry a finished step.
    """

    def __init__(self) -> None:
        self.steps = array("q")
        self._current = 0

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call and count the time for the current step."""
        start = perf_counter_ns()
        result = function(*args, **kwargs)
        self._current += perf_counter_ns() - start
        return result

    def add(self, nanoseconds: int) -> None:
        """Count time for the current step."""
        self._current += nanoseconds

    def end_step(self) -> None:
        """Close the current step."""
        self.steps.append(self._current)
        self._current = 0
