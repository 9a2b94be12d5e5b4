"""The coefficients of the virtual clock, fitted to what an engine recorded."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Final

import msgspec
import numpy as np

from hybrid_blocks.replay import Engine, EngineConfig, StepTime, block_cache
from hybrid_blocks.replay.latencies import Latencies
from hybrid_blocks.sizing.equations import COLUMNS, equations
from hybrid_blocks.sizing.least_squares import solve
from hybrid_blocks.sizing.recorded_hits import RecordedHits
from hybrid_blocks.sizing.served import Floats, Served
from hybrid_blocks.sizing.slo import duration

COMPARED: Final = ("ttft", "e2e")
RANKS: Final = (50, 95)

_SHORTEST: Final = 1e-6


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """How far virtual times of one kind are from recorded ones.

    Attributes:
        kind: ``ttft`` or ``e2e``.
        p50: median over the requests of ``|virtual - recorded| / recorded``.
        p95: its 95th percentile.
        recorded: the recorded percentiles of `RANKS`, in seconds.
        virtual: those in virtual time.
    """

    kind: str
    p50: float
    p95: float
    recorded: tuple[float, ...]
    virtual: tuple[float, ...]

    @property
    def of_percentiles(self) -> tuple[float, ...]:
        """How far each virtual percentile is from the recorded one, as a share of it."""
        pairs = zip(self.virtual, self.recorded, strict=True)
        return tuple(virtual / recorded - 1 for virtual, recorded in pairs)


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted clock, and its errors over the requests that it was fitted to."""

    step_time: StepTime
    requests: int
    errors: tuple[Error, ...]

    @property
    def lines(self) -> Iterator[str]:
        """Say which coefficients were found, and how far off they are."""
        found = asdict(self.step_time)
        values = ", ".join(f"{name} {_small(found[name])}" for name in COLUMNS)
        yield f"fitted to {self.requests:,} requests: {values}"
        yield from (error_line(error) for error in self.errors)


def error_line(error: Error) -> str:
    """Say one error in a line."""
    each = zip(RANKS, error.virtual, error.recorded, error.of_percentiles, strict=True)
    percentiles = ", ".join(
        f"p{rank} {duration(virtual)} where {duration(recorded)} was recorded ({away:+.0%})"
        for rank, virtual, recorded, away in each
    )
    return (
        f"{error.kind}: a request is off by {error.p50:.0%} (p50) and {error.p95:.0%} (p95); "
        f"{percentiles}"
    )


def fit(served: Served, config: EngineConfig) -> Fit:
    """Fit the clock of an engine with the limits of ``config``."""
    counts, seconds = equations(served, config.max_num_batched_tokens)
    found = solve(counts, seconds)
    step_time = StepTime(**dict(zip(COLUMNS, found.tolist(), strict=True)))
    return Fit(
        step_time=step_time,
        requests=int(served.is_timed.sum()),
        errors=errors_of(served, step_time, config),
    )


def errors_of(served: Served, step_time: StepTime, config: EngineConfig) -> tuple[Error, ...]:
    """Serve the recorded requests in virtual time, with the hits that they had, and compare."""
    cache = block_cache(1, 16)
    manager = RecordedHits(served.found)
    engine = Engine(served.trace, manager, cache, replace(config, step_time=step_time, watermark=0))
    engine.run()
    return tuple(_error(kind, served, engine.latencies) for kind in COMPARED)


def _error(kind: str, served: Served, latencies: Latencies) -> Error:
    timed = served.is_timed
    end = served.first_token if kind == "ttft" else served.finished
    virtual_end = latencies.first_token if kind == "ttft" else latencies.finished
    recorded: Floats = np.maximum((end - served.arrival)[timed], _SHORTEST)
    virtual: Floats = (virtual_end - latencies.arrived)[timed]
    away = np.abs(virtual - recorded) / recorded
    return Error(
        kind=kind,
        p50=float(np.percentile(away, 50)),
        p95=float(np.percentile(away, 95)),
        recorded=tuple(np.percentile(recorded, RANKS).tolist()),
        virtual=tuple(np.percentile(virtual, RANKS).tolist()),
    )


def _small(seconds: float) -> str:
    """Seconds of a step, a token or a pair."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0" if seconds == 0 else f"{seconds * 1e12:.3g} ps"
