"""Summaries of the measured times: rows of the table and the entry of ``tuned.json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

ENOUGH = 0.95  # of the best rate: the fewest SMs that come so far are the default


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of many calls: the median, and the tenth and ninetieth percentile."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """Summarise at least two times."""
        cuts = quantiles(seconds, n=10, method="inclusive")
        return cls(cuts[4], cuts[0], cuts[8])

    def cell(self, floor: float | None) -> str:
        """Return ``median (p10 to p90) µs``, and the share of the floor's rate where it has one."""
        times = f"{self.median * 1e6:,.1f} ({self.p10 * 1e6:,.1f} to {self.p90 * 1e6:,.1f}) µs"
        return times if floor is None else f"{times}, {floor / self.median:.1%}"


WRONG = "WRONG RESULT"
FAILED = "failed"
MISSING = "—"


def any_wrong(cells: Sequence[str]) -> bool:
    """Return whether a version of ours computed something else than the reference, or failed."""
    return any(cell in {WRONG, FAILED} for cell in cells)


def fewest_sms(rates: Mapping[int, Mapping[int, float]]) -> int:
    """Return the fewest SMs that reach ``ENOUGH`` of the best rate at every size.

    ``rates[size][sms]`` are bytes per second; every size has the same choices of SMs.
    """
    choices = sorted(next(iter(rates.values())))
    for sms in choices:
        if all(of[sms] >= ENOUGH * max(of.values()) for of in rates.values()):
            return sms
    return choices[-1]


def engine_rules(
    engine: Mapping[tuple[int, int], float], kernel: Mapping[tuple[int, int], float]
) -> list[tuple[int, int]]:
    """Return the (run bytes, runs) from which on the copy engine is the quicker one.

    Both map (run bytes, runs) to bytes per second. A rule holds for all measured sizes and counts
    at or above it; rules that another one covers are left out.
    """
    rules: list[tuple[int, int]] = []
    for size, count in sorted(engine):
        above = [key for key in engine if key[0] >= size and key[1] >= count]
        covered = any(size >= least and count >= runs for least, runs in rules)
        if not covered and all(engine[key] >= ENOUGH * kernel[key] for key in above):
            rules.append((size, count))
    return rules


def tuned_entry(
    sms: Mapping[str, Mapping[str, int]],
    rules: Mapping[str, Sequence[tuple[int, int]]],
    *,
    sources: str,
    date: str,
) -> dict[str, Any]:
    """Return a device's entry of ``tuned.json``."""
    return {
        "measured": date,
        "sources": sources,
        "max_sms": {direction: dict(of) for direction, of in sms.items()},
        "copy_engine": {direction: [list(rule) for rule in of] for direction, of in rules.items()},
    }
