"""SGLang's figures for the terminal."""

from rich.table import Table

from hybrid_blocks.plan.report.sglang_report import SglangReport
from hybrid_blocks.terminal import grid
from hybrid_blocks.units import human


def sglang_table(report: SglangReport) -> Table:
    """Table of the pools, one column for each strategy."""
    pools = report.strategies
    names = [one.strategy or "one pool" for one in pools]
    table = grid(f"SGLang {report.release}, same bytes", "", *names)

    def row(name: str, *cells: str) -> None:
        table.add_row(name, *cells)

    if pools[0].state_slots is not None:
        row("state slots", *(f"{one.state_slots:,} x {human(one.state_bytes)}" for one in pools))
        row("slots a request", *(f"{one.slots_per_request}" for one in pools))
    row("tokens of the pool", *(f"{one.tokens:,}" for one in pools))
    if pools[0].window_tokens is not None:
        row("tokens of the windows' pool", *(f"{one.window_tokens:,}" for one in pools))
    row("most running requests", *(f"{one.max_running:,}" for one in pools))
    for index, first in enumerate(pools[0].lengths):
        at = [one.lengths[index] for one in pools]
        ratio = "" if pools[0].ratio is None else f", ratio {pools[0].ratio}"
        row(f"requests of {first.length:,}{ratio}", *(f"{one.running:,.2f}x" for one in at))
        row("  token pool idle", *(human(one.idle_bytes) for one in at))
        if first.best_ratio is not None:
            row("  best ratio", *(f"{one.best_ratio:g}" for one in at))
            row("  requests at it", *(f"{one.best_running:,.2f}x" for one in at))
        if first.unified_running is not None:
            row("  in unified memory", *(f"{one.unified_running:,.2f}x" for one in at))
    if pools[0].trace is not None:
        means = [one.trace.running for one in pools if one.trace is not None]
        row(
            f"requests of the trace (mean {pools[0].trace.length:,})",
            *(f"{running:,.2f}x" for running in means),
        )
    return table
