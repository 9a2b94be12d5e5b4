"""Pictures of replays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import ReplayError
from hybrid_blocks.tools.replay.result import Result

MAX_POINTS = 4000


def plot(path: Path, runs: Sequence[tuple[Result, Timeline]]) -> None:
    """Draw pool use and the number of running and waiting requests over virtual time.

    The format follows the suffix of ``path``. Needs matplotlib, the extra ``plot``.
    """
    figure = _figure(6)
    pool, requests = figure.subplots(2, 1, sharex=True)
    for result, timeline in runs:
        last = len(timeline.seconds) - 1
        every = np.unique(np.linspace(0, last, MAX_POINTS).astype(int))
        minutes = np.array(timeline.seconds)[every] / 60
        use = 100 * np.array(timeline.used_blocks)[every] / result.blocks_total
        style: dict[str, Any] = {"linewidth": 1, "drawstyle": "steps-pre"}
        pool.plot(minutes, use, label=result.variant or result.manager, **style)
        for name, counts in (("running", timeline.running), ("waiting", timeline.waiting)):
            label = f"{result.variant or result.manager}: {name}"
            requests.plot(minutes, np.array(counts)[every], label=label, **style)
    pool.set(ylabel="pool use (%)", ylim=(0, 102), title=f"Replay of {runs[0][0].trace}")
    requests.set(xlabel="virtual time (min)", ylabel="requests", ylim=(0, None))
    for axes in (pool, requests):
        axes.legend(loc="upper right")
        axes.grid(alpha=0.3)
    _save(figure, path)


def plot_hits(path: Path, results: Sequence[Result]) -> None:
    """Draw hits over memory, a curve a variant, and what attention alone would allow."""
    figure = _figure(5)
    axes = figure.subplots()
    for name in dict.fromkeys(result.variant for result in results):
        own = sorted(
            (result.memory_bytes / 2**30, 100 * result.hit_rate)
            for result in results
            if result.variant == name
        )
        axes.plot(*zip(*own, strict=True), label=name, linewidth=1, marker="o", markersize=3)
    bound = results[0].sequential_hit_rate
    if bound is not None:
        axes.axhline(100 * bound, color="gray", linestyle=":", label="attention alone")
    axes.set(
        xscale="log",
        xlabel="memory of the cache (GiB)",
        ylabel="hits (% of prompt tokens)",
        title=f"Hits of {results[0].trace}",
        ylim=(0, None),
    )
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    _save(figure, path)


def _figure(height: int) -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise ReplayError("--plot needs matplotlib: pip install 'hybrid-blocks[plot]'") from error
    return Figure(figsize=(10, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the file's suffix."""
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ReplayError(f"cannot draw {path}: {error}") from error
