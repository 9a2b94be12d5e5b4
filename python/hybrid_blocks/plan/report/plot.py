"""A stacked bar of the memory: what the bytes of each plan hold when it is full."""

from pathlib import Path

from hybrid_blocks.model import PlanError
from hybrid_blocks.plan.report.report import Report


def plot(report: Report, path: Path) -> None:
    """Draw one bar for each plan and length into ``path``; its ending chooses the format.

    Raises:
        PlanError: matplotlib is not installed, or the file cannot be written.

    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise PlanError("--plot needs matplotlib: pip install 'hybrid-blocks[plot]'") from None
    bars = []
    for index, ours in enumerate(report.natural.lengths):
        if report.vllm is not None:
            bars.append((f"vLLM\n{ours.length:,} tokens", report.vllm.lengths[index].budget))
        bars.append((f"natural\n{ours.length:,} tokens", ours.budget))
    figure = Figure(figsize=(2.5 + 1.4 * len(bars), 5), layout="constrained")
    axes = figure.add_subplot()
    bottoms = [0.0] * len(bars)
    for part in bars[0][1].parts:
        heights = [budget.parts[part] / 2**30 for _, budget in bars]
        axes.bar(range(len(bars)), heights, bottom=bottoms, label=part.replace("_", " "))
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_xticks(range(len(bars)), [label for label, _ in bars])
    axes.set_ylabel("GiB")
    axes.set_title(f"{report.model}: memory when full")
    figure.legend(loc="outside right upper")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PlanError(f"--plot {path}: {error}") from None
