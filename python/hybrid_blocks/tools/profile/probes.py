"""Measurements: steps by the clock, and stopwatches around the parts inside them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any


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
    the step before were taken in. Where it ``only_decodes``, no request began or ended in it or in
    the step before, and no prompt was computed.
    """

    begin: int
    admitted: int
    scheduled: int
    resumed: int
    updated: int
    num_scheduled: int
    num_running: int
    num_finished: int
    only_decodes: bool

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


@dataclass
class Probes:
    """Times calls by part. Parts do not nest; ``spans`` are in the order in which they ended."""

    spans: list[Span] = field(default_factory=list)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with a stopwatch around it."""

        def timed_call(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter_ns()
            result = call(*args, **kwargs)
            self.spans.append(Span(part, start, perf_counter_ns() - start))
            return result

        return timed_call

    def attach(self, scheduler: Any) -> None:
        """Time what the scheduler asks of its block manager."""
        manager = scheduler.kv_cache_manager
        for part, method in (
            ("match", "get_computed_blocks"),
            ("allocate", "allocate_slots"),
            ("free", "free"),
            ("copies", "take_kv_cache_block_copies"),
        ):
            setattr(manager, method, self.timed(part, getattr(manager, method)))
        if getattr(scheduler, "_decodes", None) is not None:
            scheduler._decodes = TimedDecodes(scheduler._decodes, self)


class TimedDecodes:
    """Times what is done for all decoding requests at once, as allocation: it is mostly that."""

    def __init__(self, decodes: Any, probes: Probes) -> None:
        self._decodes = decodes
        self._probes = probes
        self.advance, self.forget = decodes.advance, decodes.forget
        self.take_outputs = decodes.take_outputs

    def schedule(self, *args: Any) -> Any:
        """Schedule, and note how long it took and for how many requests."""
        start = perf_counter_ns()
        scheduled = self._decodes.schedule(*args)
        length = perf_counter_ns() - start
        requests = max(1, scheduled.num_seen)
        self._probes.spans.append(Span("allocate", start, length, requests))
        return scheduled
