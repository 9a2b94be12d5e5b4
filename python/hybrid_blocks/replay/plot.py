"""A picture of a replay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.result import Result
from hybrid_blocks.replay.timeline import Timeline

MAX_POINTS = 4000


def plot(path: Path, runs: Sequence[tuple[Result, Timeline]]) -> None:
    """Draw pool use and the number of running and waiting requests over virtual time.

    The format follows the suffix of ``path``. Needs matplotlib, the extra ``plot``.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise ReplayError("--plot needs matplotlib: pip install 'hybrid-blocks[plot]'") from error
    figure = Figure(figsize=(10, 6), layout="constrained")
    pool, requests = figure.subplots(2, 1, sharex=True)
    for result, timeline in runs:
        last = len(timeline.seconds) - 1
        every = np.unique(np.linspace(0, last, MAX_POINTS).astype(int))
        minutes = np.array(timeline.seconds)[every] / 60
        use = 100 * np.array(timeline.used_blocks)[every] / result.blocks_total
        style: dict[str, Any] = {"linewidth": 1, "drawstyle": "steps-pre"}
        pool.plot(minutes, use, label=result.manager, **style)
        for name, counts in (("running", timeline.running), ("waiting", timeline.waiting)):
            requests.plot(
                minutes, np.array(counts)[every], label=f"{result.manager}: {name}", **style
            )
    pool.set(ylabel="pool use (%)", ylim=(0, 102), title=f"Replay of {runs[0][0].trace}")
    requests.set(xlabel="virtual time (min)", ylabel="requests", ylim=(0, None))
    for axes in (pool, requests):
        axes.legend(loc="upper right")
        axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ReplayError(f"cannot draw {path}: {error}") from error
