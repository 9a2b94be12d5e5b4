"""What was measured: steps by the clock, and spans inside them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of time: what it was spent on, when it began, how long it was, in ns.

    ``requests`` is how many it was spent on.
    """

    part: str
    start: int
    length: int
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One step by the clock, in ns.

    Requests were admitted, a batch was scheduled, and, after outputs had been made up, those of
    the step before were taken in.
    """

    begin: int
    admitted: int
    scheduled: int
    resumed: int
    updated: int
    num_scheduled: int
    num_finished: int

    @property
    def admit(self) -> int:
        """Time to make and add new requests."""
        return self.admitted - self.begin

    @property
    def schedule(self) -> int:
        """Time of ``schedule``."""
        return self.scheduled - self.admitted

    @property
    def update(self) -> int:
        """Time of ``update_from_output``."""
        return self.updated - self.resumed
