"""Counts, times and FLOPs that an engine adds up step by step."""

import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Final, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from hybrid_blocks.model import Model
from hybrid_blocks.model.layer import Attention, FullAttention

_NAMED_PARAMETERS = re.compile(r"[-_]A?(\d+(?:\.\d+)?)B(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of computing ``n`` tokens from the start: ``linear * n + quadratic * n**2``.

    Attributes:
        linear: 2 a parameter that a token passes.
        quadratic: scores and values of full attention, causal: twice the sum over its layers of
            query heads times head size.
    """

    linear: float
    quadratic: float

    def of(self, num_tokens: int) -> float:
        """Return the FLOPs of ``num_tokens`` tokens."""
        return self.linear * num_tokens + self.quadratic * num_tokens**2


def flops_of(model: Model) -> Flops:
    """Estimate the FLOPs of a model.

    The parameters are the active ones that its name tells (27B, 35B-A3B). A name that tells none is
    taken for 12 * width**2 a layer, where the width is query heads times head size.
    """
    attention = [layer.cache for layer in model.layers if isinstance(layer.cache, Attention)]
    widths = [(cache.query_heads or cache.kv_heads) * cache.head_dim for cache in attention]
    named = _NAMED_PARAMETERS.findall(model.name)
    if named:
        parameters = float(named[-1]) * 1e9
    else:
        parameters = 12.0 * float(np.mean(widths or [4096])) ** 2 * model.num_layers
    full = sum(
        width
        for cache, width in zip(attention, widths, strict=True)
        if isinstance(cache, FullAttention)
    )
    return Flops(linear=2 * parameters, quadratic=2.0 * full)


@dataclass(slots=True)
class Counters:
    """Totals so far.

    Attributes:
        rejected: requests that no empty pool could hold, left out.
        hit_tokens: prompt tokens found in the cache at a request's first admission.
        prompt_blocks: blocks of the prompts of admitted requests, partial ones included.
        recomputed_tokens: tokens computed again after a preemption.
    """

    finished: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    hit_tokens: int = 0
    hit_blocks: int = 0
    prompt_blocks: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    peak_running: int = 0
    saved_flops: float = 0.0

    @property
    def done(self) -> int:
        """Requests that need nothing more."""
        return self.finished + self.rejected


P = ParamSpec("P")
T = TypeVar("T")


class Meter:
    """Nanoseconds spent in the manager; ``steps`` has an entry for each finished step."""

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


@dataclass(slots=True)
class FullLoad:
    """Sums over the steps in which a request waited for memory or was preempted.

    Taken before the requests that a step finishes give their memory back.

    Attributes:
        live_bytes: what the running requests could not do without; see `LiveBytes`.
        used_bytes: what was reserved for them.
        reserved: shares of the used bytes by what they are held for.
        needless_waits: steps in which the first that waits was refused though it would have fit.
    """

    steps: int = 0
    live_bytes: int = 0
    used_bytes: int = 0
    running: int = 0
    efficiency: float = 0.0
    needless_waits: int = 0
    reserved: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        live_bytes: int,
        used_bytes: int,
        running: int,
        steps: int,
        reserved: Mapping[str, int] | None,
    ) -> None:
        """Add a sample that stands for ``steps`` steps; ``reserved`` has the used bytes by part."""
        self.steps += steps
        self.live_bytes += live_bytes * steps
        self.used_bytes += used_bytes * steps
        self.running += running * steps
        self.efficiency += live_bytes / max(used_bytes, 1) * steps
        for part, num_bytes in (reserved or {}).items():
            share = num_bytes / max(used_bytes, 1) * steps
            self.reserved[part] = self.reserved.get(part, 0.0) + share

    @property
    def memory_efficiency(self) -> float | None:
        """Live bytes over used bytes, mean over the steps; None if no request ever waited."""
        return self.efficiency / self.steps if self.steps else None

    @property
    def reserved_for(self) -> dict[str, float] | None:
        """Shares of the used bytes by part, mean over the steps; None where none were counted."""
        return {part: share / self.steps for part, share in self.reserved.items()} or None

    @property
    def live_bytes_per_request(self) -> float | None:
        """Mean live bytes of a running request; None if no request ever waited."""
        return self.live_bytes / self.running if self.running else None


Seconds = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]

KINDS: Final = ("ttft", "e2e", "tpot")


class Latencies:
    """Virtual times of the requests of a trace, shape ``[n]`` each; NaN until it is so far.

    Attributes:
        arrived: when a request came in; a follower comes after its leader's end and the pause.
        first_token: when its first token was sampled.
        finished: when its last token was.
    """

    def __init__(self, output_tokens: Counts) -> None:
        self._output_tokens = output_tokens
        self.arrived, self.first_token, self.finished = np.full((3, len(output_tokens)), np.nan)

    def of(self, kind: str) -> Seconds:
        """Return the seconds of the requests that have them, by a name of `KINDS`."""
        seconds = self.each(kind)
        known: Seconds = seconds[~np.isnan(seconds)]
        return known

    def each(self, kind: str) -> Seconds:
        """Return the seconds of each request, shape ``[n]``; NaN without.

        ``ttft`` is the time to the first token, and ``e2e`` to the last. ``tpot`` is the time of
        each token after the first; a request with one token has none.
        """
        seconds: Seconds
        match kind:
            case "ttft":
                seconds = self.first_token - self.arrived
            case "e2e":
                seconds = self.finished - self.arrived
            case _:
                following = np.where(self._output_tokens > 1, self._output_tokens - 1.0, np.nan)
                seconds = (self.finished - self.first_token) / following
        return seconds
