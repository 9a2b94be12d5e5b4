"""Times in which an engine core runs over a null card."""

import time
from typing import Protocol


class Clock(Protocol):
    """A time, in seconds."""

    def now(self) -> float:
        """Return the time."""

    def wait(self, end: float) -> None:
        """Wait, as a thread does for an event of a card."""


class Wall:
    """The time of this machine, with all that others take of it."""

    now = staticmethod(time.perf_counter)

    @staticmethod
    def wait(end: float) -> None:
        """Sleep until then."""
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)


class Alone:
    """The time of a core without other work: what this process computes, and what it waits."""

    def __init__(self) -> None:
        self._waited = -time.process_time()

    def now(self) -> float:
        """Return the time."""
        return time.process_time() + self._waited

    def wait(self, end: float) -> None:
        """Let time pass without sleep."""
        self._waited += max(0.0, end - self.now())


class Virtual:
    """A time in which the host computes at no cost."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the time."""
        return self._now

    def wait(self, end: float) -> None:
        """Let time pass."""
        self._now = max(self._now, end)


CLOCKS = {"wall": Wall, "alone": Alone, "virtual": Virtual}
