"""Steps by the clock, stopwatches around their parts, and the figures of both."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import msgspec
import numpy as np


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


PARTS = ("hashing", "match", "allocate", "free", "copies", "rest of schedule", "rest of update")
NS_PER_US = 1e3


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one level, in microseconds.

    A step is ``schedule`` and ``update_from_output``; ``step_us_p50`` and the like come from steps
    without probes, ``decode_us_p50`` from those of them in which requests only decode, 0 if there
    are none. ``allocate_us_p50`` is one call, that is one request. ``parts_us`` is the mean
    over steps with probes; hashing and adding new requests come on top of a step. The scheduler
    could sustain ``requests_per_second`` if a model took no time.
    """

    step_us_p50: float
    step_us_p99: float
    decode_us_p50: float
    schedule_us_p50: float
    allocate_us_p50: float
    update_us_p50: float
    requests_per_second: float
    steps: int
    running: float
    parts_us: dict[str, float]

    @property
    def block_share(self) -> float:
        """Return the share of a step that goes to matching, allocating and freeing blocks."""
        blocks = sum(self.parts_us[part] for part in ("match", "allocate", "free"))
        rest = self.parts_us["rest of schedule"] + self.parts_us["rest of update"]
        return blocks / (blocks + rest)

    def hidden_share(self, gpu_step_ms: float) -> float:
        """Return the share of a median step that a model's step of this length hides."""
        return min(1.0, gpu_step_ms * 1e3 / self.step_us_p50)


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a level's process.

    ``decisions`` is a digest of all schedules, and ``outputs`` of all outputs for clients.
    """

    result: LevelResult
    decisions: str
    outputs: str


def summarize(plain: list[Step], probed: list[Step], spans: list[Span]) -> LevelResult:
    """Work out the result of steps without probes, and of steps with them and their spans."""
    schedule = np.array([step.schedule for step in plain]) / NS_PER_US
    update = np.array([step.update for step in plain]) / NS_PER_US
    admit = np.array([step.admit for step in plain]) / NS_PER_US
    total = float((admit + schedule + update).sum())
    step_us = schedule + update
    decodes = step_us[[step.only_decodes for step in plain]]
    return LevelResult(
        step_us_p50=float(np.median(step_us)),
        step_us_p99=float(np.percentile(step_us, 99)),
        decode_us_p50=float(np.median(decodes)) if len(decodes) else 0.0,
        schedule_us_p50=float(np.median(schedule)),
        allocate_us_p50=_allocation_us(spans),
        update_us_p50=float(np.median(update)),
        requests_per_second=sum(step.num_finished for step in plain) / total * 1e6,
        steps=len(plain),
        running=float(np.mean([step.num_running for step in plain])),
        parts_us=_parts(probed, spans),
    )


def _allocation_us(spans: list[Span]) -> float:
    """Return the median over requests; 0 where nothing is allocated."""
    allocations = [span for span in spans if span.part == "allocate"]
    if not allocations:
        return 0.0
    each = np.array([span.length / span.requests for span in allocations])
    return float(np.median(each.repeat([span.requests for span in allocations]))) / NS_PER_US


def _parts(steps: list[Step], spans: list[Span]) -> dict[str, float]:
    inside: dict[str, int] = defaultdict(int)
    in_schedule = in_update = 0
    remaining = iter(spans)
    span = next(remaining, None)
    for step in steps:
        while span is not None and span.start < step.updated:
            inside[span.part] += span.length
            if span.start >= step.resumed:
                in_update += span.length
            elif span.start >= step.admitted:
                in_schedule += span.length
            span = next(remaining, None)
    inside["rest of schedule"] = sum(step.schedule for step in steps) - in_schedule
    inside["rest of update"] = sum(step.update for step in steps) - in_update
    return {part: inside[part] / NS_PER_US / len(steps) for part in PARTS}
