"""The requests that ``replay`` runs, and its runs with a bar each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from hybrid_blocks.terminal import make_console
from hybrid_blocks.tools.cli.output import warn
from hybrid_blocks.tools.plan.report.advice import too_long
from hybrid_blocks.tools.replay import Cache, EngineConfig, ReplayError, Result
from hybrid_blocks.tools.replay.cache import SharedCache, share_text
from hybrid_blocks.tools.replay.run import Runs, Variant, compare, without_worse_settings
from hybrid_blocks.tools.replay.timed import timed
from hybrid_blocks.tools.trace import (
    DamagedLineError,
    OnError,
    Trace,
    generate_workload,
    measure_sharing,
    read_trace,
)


def make_progress() -> Progress:
    """Make bars with counts and times, on standard error."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=make_console(stderr=True))


NUM_REQUESTS = 2000
MOST_GENERATED = 1_000_000
"""Requests of a workload: more would hold more tokens than ids can tell apart."""


def read_requests(path: Path, trace_format: str, on_error: OnError, limit: int | None) -> Trace:
    """Return the requests of a trace."""
    with says_how_to_skip():
        trace = read_trace(path, trace_format, on_error)
    warn_of(trace)
    return trace if limit is None else trace.head(limit)


@contextmanager
def says_how_to_skip() -> Iterator[None]:
    """Add the remedy to the error of a damaged line."""
    try:
        yield
    except DamagedLineError as error:
        raise ReplayError(f"{error}. Leave out damaged lines with --on-error skip") from None


def warn_of(trace: Trace) -> None:
    """Warn of all that a file does not tell of its requests."""
    for note in trace.notes:
        warn(note)


def warn_of_lengths(trace: Trace, cache: Cache) -> None:
    """Warn of requests that an engine of the cache's model refuses, where its maximum is known."""
    limit = None if cache.model is None else cache.model.max_model_len
    if limit is not None and (text := too_long(limit, trace.total_tokens.tolist())):
        warn(text)


def generate_requests(workload: str, seed: int, limit: int | None, seats: int) -> Trace:
    """Return a workload's requests."""
    if limit is not None and limit > MOST_GENERATED:
        raise ReplayError(
            f"--limit {limit:,}: at most {MOST_GENERATED:,} requests are generated; a TRACE may "
            "have more"
        )
    return generate_workload(workload, seed, limit or NUM_REQUESTS, seats)


def run(
    trace: Trace,
    cache: Cache,
    variants: Sequence[Variant],
    config: EngineConfig,
    *,
    shares: Sequence[float] | None,
    with_film: bool,
    rate: float | None,
) -> tuple[list[Result], Runs]:
    """Run each variant, over shares of an unbounded cache if there are some.

    Runs over shares have results alone. Runs with targets are at a ``rate``, or at the highest.
    """
    what = "sharing" if shares is None else "an unbounded cache"
    results: list[Result] = []
    with make_progress() as progress:
        measuring = progress.add_task(f"measure {what}", total=1)
        if shares is None:
            sharing = measure_sharing(trace, cache.geometry.hash_block_size)
            progress.update(measuring, completed=1)
            tasks = _Tasks(progress, len(trace))
            how: dict[str, Any] = {"sharing": sharing, "with_film": with_film, "on_progress": tasks}
            if config.targets is None:
                runs = without_worse_settings(compare(trace, cache, variants, config, **how))
            else:
                runs = timed(trace, cache, variants, config, rate=rate, **how)
            return [result for result, _ in runs], runs
        unbounded = SharedCache(trace, cache)
        progress.update(measuring, completed=1)
        for share in shares:
            text = share_text(share)
            runs = compare(
                *(trace, unbounded.at(share), variants, config),
                share=text,
                sharing=unbounded.sharing,
                prefixes=unbounded.prefixes,
                on_progress=_Tasks(progress, len(trace), f"{text} "),
            )
            results += [result for result, _ in without_worse_settings(runs)]
    return results, []


class _Tasks:
    """A bar for every variant that has begun."""

    def __init__(self, progress: Progress, total: int, prefix: str = "") -> None:
        self._progress = progress
        self._total = total
        self._prefix = prefix
        self._tasks: dict[Variant, TaskID] = {}

    def __call__(self, variant: Variant, done: int) -> None:
        if variant not in self._tasks:
            title = f"replay ({self._prefix}{variant.name})"
            self._tasks[variant] = self._progress.add_task(title, total=self._total)
        self._progress.update(self._tasks[variant], completed=done)
