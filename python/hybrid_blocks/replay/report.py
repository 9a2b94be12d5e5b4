"""The table at the end of a replay."""

from collections.abc import Sequence

from rich.table import Table

from hybrid_blocks.replay.result import Result


def make_table(results: Sequence[Result]) -> Table:
    """Make a table with one column of figures a manager."""
    table = Table(title=f"replay of {results[0].trace}", title_justify="left")
    table.add_column("")
    columns = [_figures(result) for result in results]
    for result in results:
        table.add_column(result.manager, justify="right")
    for name in columns[0]:
        table.add_row(name, *(figures.get(name, "") for figures in columns))
    return table


def _figures(result: Result) -> dict[str, str]:
    figures = {
        "requests": f"{result.requests:,}",
        "prompt tokens": f"{result.prompt_tokens:,}",
        "output tokens": f"{result.output_tokens:,}",
        "prefix hit rate": f"{result.hit_rate:.1%} of tokens, "
        f"{result.block_hit_rate:.1%} of blocks",
        "  one at a time, unbounded": _sequential(result),
        "peak running": f"{result.peak_running:,}",
        "preemptions": f"{result.preemptions:,} ({result.recomputed_tokens:,} tokens recomputed)",
        "blocks": f"{result.blocks_total:,} of {result.block_size} tokens",
        "pool use": f"{result.pool_use_mean:.1%} mean, "
        f"{result.blocks_used_peak / result.blocks_total:.1%} peak",
        "steps": f"{result.steps:,}",
        "manager a step": f"{result.manager_us_per_step_p50:.1f} µs p50, "
        f"{result.manager_us_per_step_p99:.1f} µs p99",
        "manager in all": f"{result.manager_seconds:.2f} s",
        "virtual time": f"{result.virtual_seconds:,.1f} s",
        "wall time": f"{result.wall_seconds:.1f} s",
    }
    if result.rejected_requests:
        figures["rejected requests"] = f"{result.rejected_requests:,} larger than the pool"
    if result.damaged_lines:
        figures["damaged lines"] = f"{result.damaged_lines:,} skipped"
    return figures


def _sequential(result: Result) -> str:
    if result.sequential_hit_rate is None:
        return "not measured"
    lower = 100 * (result.sequential_hit_rate - result.hit_rate)
    return f"{result.sequential_hit_rate:.1%} of tokens: {lower:.2f} points more"
