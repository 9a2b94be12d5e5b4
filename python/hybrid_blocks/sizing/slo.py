"""Targets of latency: ``ttft_p95<2s,tpot_p50<40ms``."""

import math
import re
from typing import Final

import msgspec
import numpy as np

from hybrid_blocks.replay.latencies import KINDS, Latencies, Seconds
from hybrid_blocks.sizing.errors import SizingError

PERCENTILES: Final = (50, 90, 95, 99)

_TERM: Final = re.compile(r"([a-z0-9]+)_p(\d{1,3})\s*<=?\s*(\d{1,12}(?:\.\d{1,12})?)\s*(ms|s)")
_EXAMPLE: Final = "write for example ttft_p95<2s,tpot_p50<40ms"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A percentile of a latency of `KINDS`, and the seconds that it stays below."""

    kind: str
    percentile: int
    seconds: float

    @property
    def name(self) -> str:
        """Its name, as it is written."""
        return f"{self.kind}_p{self.percentile}"

    def __str__(self) -> str:
        return f"{self.name}<{duration(self.seconds)}"

    def measure(self, *latencies: Latencies) -> float:
        """Return the percentile over all replicas in seconds; 0 if no request has such a time."""
        seconds = np.concatenate([one.of(self.kind) for one in latencies])
        return percentile(seconds, self.percentile)

    def is_lost(self, num_late: int, num_requests: int) -> bool:
        """Whether the percentile is missed, whatever the requests do that are not among ``late``.

        ``num_late`` of ``num_requests`` are at ``seconds`` or above.
        """
        below = math.floor((num_requests - 1) * self.percentile / 100)
        return num_late >= num_requests - below


def parse_slo(text: str) -> tuple[Target, ...]:
    """Read targets, separated by commas.

    Raises:
        SizingError: a term that is none, or one that is named twice.

    """
    targets: list[Target] = []
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip().lower())
        if match is None:
            raise SizingError(f"--slo {term!r} is no target; {_EXAMPLE}")
        kind, rank, number, unit = match.groups()
        if kind not in KINDS:
            raise SizingError(f"--slo {term}: {kind} is none of {', '.join(KINDS)}; {_EXAMPLE}")
        if int(rank) not in PERCENTILES:
            known = ", ".join(f"p{one}" for one in PERCENTILES)
            raise SizingError(f"--slo {term}: p{rank} is none of {known}; {_EXAMPLE}")
        seconds = float(number) / (1000 if unit == "ms" else 1)
        if seconds == 0:
            raise SizingError(f"--slo {term}: no engine answers in no time; {_EXAMPLE}")
        target = Target(kind=kind, percentile=int(rank), seconds=seconds)
        if any(target.name == other.name for other in targets):
            raise SizingError(f"--slo names {target.name} twice; leave one out")
        targets.append(target)
    return tuple(targets)


def percentile(seconds: Seconds, rank: int) -> float:
    """Return a percentile; 0 of nothing."""
    return float(np.percentile(seconds, rank)) if len(seconds) else 0.0


def duration(seconds: float) -> str:
    """Seconds as people write them: ``40 ms``, ``1.23 s``, ``210 s``."""
    if not math.isfinite(seconds):
        return "never"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
