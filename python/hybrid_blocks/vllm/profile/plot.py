"""A profile as stacked bars."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hybrid_blocks.vllm.profile.result import PARTS, LevelResult


def plot(path: Path, results: Mapping[str, LevelResult]) -> None:
    """Draw what each level's step consists of; the file's ending chooses the format."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(1.5 + 1.2 * len(results), 4), layout="constrained")
    axes = figure.subplots()
    levels = list(results)
    bottom = np.zeros(len(levels))
    for part in PARTS:
        heights = np.array([results[level].parts_us[part] for level in levels]) / 1e3
        axes.bar(levels, heights, bottom=bottom, label=part)
        bottom += heights
    axes.set_ylabel("ms a step, mean with probes")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
