"""Summaries of the measured times: rows of the table and the entry of ``tuned.json``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

ENOUGH = 0.95  # The fewest SMs that reach this share of the best rate are the default.


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
OURS = ("cupy", "triton")
COLUMNS = (*OURS, "torch", "batch", "vllm")
HEADER = ("case", "target", "predicted", "floor", *COLUMNS, "host µs a call")


def any_wrong(case: Mapping[str, Any]) -> bool:
    """Return whether a version of ours computed something else than the reference, or failed."""
    return any(case.get(column) in (WRONG, FAILED) for column in OURS)


def head(record: Mapping[str, Any]) -> list[str]:
    """Return the lines above the cases of a record: the device, its state and measured rates."""
    rates = {name: f"{rate / 1e9:,.1f}" for name, rate in record["rates_bytes_per_s"].items()}
    return [
        f"# Kernels on {record['device']}, {record['date'].split()[0]}",
        "",
        f"{json.dumps(record['versions'])}; {json.dumps(record['state_before'])}. Measured rates: "
        f"device copy {rates['copy']} GB/s (read + written), to pinned host {rates['to_host']} "
        f"GB/s, from it {rates['to_device']} GB/s.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---" * len(HEADER) + "|",
    ]


def row(case: Mapping[str, Any]) -> str:
    """Return the table's row of a case of a record."""
    floor, target = case["floor_s"], case.get("target")

    def cell(column: str) -> str:
        figure = case.get(column, MISSING)
        if isinstance(figure, str):
            return figure
        spread = Spread(figure["median_s"], figure["p10_s"], figure["p90_s"])
        return spread.cell(None).removesuffix(" µs") if column == "host" else spread.cell(floor)

    cells = [
        case["case"],
        MISSING if target is None else f"≥ {target:.0%}",
        case["predicted"],
        MISSING if floor is None else f"{floor * 1e6:,.0f} µs",
        *map(cell, (*COLUMNS, "host")),
    ]
    return f"| {' | '.join(cells)} |"


def link(record: Mapping[str, Any]) -> list[str]:
    """Return the lines below the cases of a record: the link's rates by SMs, and the choices."""
    by_sms = record["rates_by_sms"]
    rates = [
        (f"{direction}, {backend}, {int(size) >> 10} KiB", of)
        for direction, versions in by_sms.items()
        for backend, sizes in versions.items()
        for size, of in sizes.items()
    ]
    lines = ["", "Bytes per second over the link, by SMs (GB/s):", ""]
    if rates:
        sms = list(rates[0][1])
        lines += [f"| transfer | {' | '.join(map(str, sms))} |", "|---|" + "---|" * len(sms)]
    lines += [
        f"| {transfer} | {' | '.join(f'{rate / 1e9:.1f}' for rate in of.values())} |"
        for transfer, of in rates
    ]
    if "tuned" not in record:
        return [*lines, "", "Out of time: the default of max_sms stays as it is."]
    chosen = record["tuned"]
    beside = {sms: round(share, 3) for sms, share in record["gemm_share"].items()}
    return [
        *lines,
        "",
        f"Fewest SMs at 95 % of the best rate: {chosen['max_sms']}. "
        f"Copy engine from (run bytes, runs): {chosen['copy_engine']}.",
        f"SMs that ran a warp, by max_sms: {record['sms_used']}. "
        f"Matrix products beside a gather, 1 alone: {beside}.",
    ]


def table(record: Mapping[str, Any]) -> str:
    """Return a record as Markdown."""
    return "\n".join([*head(record), *map(row, record["cases"]), *link(record)])


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
