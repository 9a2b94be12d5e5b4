"""The table and the picture of runs under the same load."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles

from load import Done
from rich.table import Table
from watch import Sample


@dataclass(frozen=True)
class Run:
    """A level's run: its finished requests and the samples that were taken meanwhile."""

    level: str
    done: list[Done]
    samples: list[Sample]

    @property
    def seconds(self) -> float:
        """Return the time from the first request to the last token."""
        return max(one.end_s for one in self.done)


def table(runs: list[Run]) -> Table:
    """Return a column a run, a row a figure."""
    result = Table(title="The same load, the same bytes")
    result.add_column("")
    for run in runs:
        result.add_column(run.level, justify="right")
    columns = [_column(run) for run in runs]
    for name in columns[0]:
        result.add_row(name, *[column[name] for column in columns])
    return result


def _column(run: Run) -> dict[str, str]:
    latencies = [one.latency_s for one in run.done]
    cuts = quantiles(latencies, n=100, method="inclusive")
    last = run.samples[-1]
    busy = [sample for sample in run.samples if sample.running + sample.waiting]
    generated = sum(len(one.tokens) for one in run.done)
    return {
        "requests finished": f"{len(run.done):,}",
        "seconds": f"{run.seconds:.1f}",
        "generated tokens/s": f"{generated / run.seconds:,.0f}",
        "latency p50 (s)": f"{cuts[49]:.2f}",
        "latency p99 (s)": f"{cuts[98]:.2f}",
        "cached prompt tokens (%)": f"{100 * last.hit_tokens / max(1, last.prompt_tokens):.1f}",
        "preemptions": f"{last.preemptions:,}",
        "running, most": f"{max((sample.running for sample in busy), default=0):,}",
        "running, mean": f"{mean(sample.running for sample in busy) if busy else 0:.1f}",
        "waiting, mean": f"{mean(sample.waiting for sample in busy) if busy else 0:.1f}",
    }


def plot(path: Path, runs: list[Run]) -> None:
    """Draw requests and the arena over time; the format follows the suffix of ``path``."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only pictures need it

    figure = Figure(figsize=(10, 3 * len(runs) + 3), layout="constrained")
    requests, *arenas = figure.subplots(1 + len(runs), 1, sharex=True)
    for run, arena in zip(runs, arenas, strict=True):
        times = [sample.at_s for sample in run.samples]
        for name in ("running", "waiting"):
            counts = [getattr(sample, name) for sample in run.samples]
            requests.plot(times, counts, label=f"{run.level}: {name}", linewidth=1)
        owners = sorted({owner for sample in run.samples for owner in sample.slabs})
        if owners:
            rows = [[sample.slabs.get(owner, 0) for sample in run.samples] for owner in owners]
            arena.stackplot(times, rows, labels=owners, step="post")
            arena.set(ylabel="slabs by owner", title=run.level)
        else:
            arena.fill_between(
                times, [100 * sample.usage for sample in run.samples], label="in use", step="post"
            )
            arena.set(ylabel="blocks (%)", ylim=(0, 102), title=run.level)
    requests.set(ylabel="requests", ylim=(0, None))
    arenas[-1].set(xlabel="time (s)")
    for axes in (requests, *arenas):
        axes.legend(loc="upper right")
    figure.savefig(path, dpi=150)
