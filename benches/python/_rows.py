"""Results of a benchmark: rows of one table, with the target each has to meet."""

import time
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured operation.

    ``value`` is ours and ``baseline`` the peer's, both in ``unit`` and measured in one process;
    ``ratio`` is ``baseline / value``, how many times faster. ``target`` says in words what is
    wanted, ``ok`` whether it is met; a row without a target is there for comparison.
    """

    name: str
    unit: str
    value: float
    baseline: float | None = None
    ratio: float | None = None
    target: str | None = None
    ok: bool | None = None


def against(
    name: str,
    unit: str,
    value: float,
    baseline: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    """Return a row whose targets, if any, are a ratio ``at_least`` and a value ``at_most``."""
    value, baseline = float(value), float(baseline)  # numpy's floats do not go into a record
    ratio = baseline / value
    targets = []
    if at_most is not None:
        targets.append((f"≤ {at_most:g}", value <= at_most))
    if at_least is not None:
        targets.append((f"≥ {at_least:g}x", ratio >= at_least))
    return Row(
        name=name,
        unit=unit,
        value=value,
        baseline=baseline,
        ratio=ratio,
        target=", ".join(target for target, _ in targets) or None,
        ok=all(met for _, met in targets) if targets else None,
    )


def within(name: str, unit: str, value: float, at_most: float) -> Row:
    """Return a row whose target is an absolute value of ``at_most``."""
    return Row(name=name, unit=unit, value=value, target=f"≤ {at_most:g}", ok=value <= at_most)


def seconds(*calls: Callable[[], object], repeat: int = 15, budget: float = 0.02) -> list[float]:
    """Return the best seconds a call of each, measured in turns so that all meet the same noise.

    A turn repeats each call for about ``budget`` seconds.
    """
    numbers = [max(1, int(budget / _seconds(call, 1))) for call in calls]
    turns = [
        [_seconds(call, number) for call, number in zip(calls, numbers, strict=True)]
        for _ in range(repeat)
    ]
    return [min(times) for times in zip(*turns, strict=True)]


def _seconds(call: Callable[[], object], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def table(title: str, rows: Sequence[Row]) -> Table:
    """Return rows as a table to read."""
    table = Table("operation", "unit", "ours", "baseline", "ratio", "target", "met", title=title)
    table.columns[0].overflow = "fold"
    for row in rows:
        table.add_row(
            row.name,
            row.unit,
            f"{row.value:.4g}",
            "" if row.baseline is None else f"{row.baseline:.4g}",
            "" if row.ratio is None else f"{row.ratio:.1f}x",
            row.target or "",
            {True: "yes", False: "NO", None: ""}[row.ok],
        )
    return table


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the table."""
    Console().print(table(title, rows))
