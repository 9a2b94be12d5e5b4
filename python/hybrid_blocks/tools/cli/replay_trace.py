"""The requests that ``replay`` runs: a trace's, or generated ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybrid_blocks.tools.cli.output import warn
from hybrid_blocks.tools.replay import ReplayError
from hybrid_blocks.tools.trace import (
    DamagedLineError,
    OnError,
    Trace,
    generate_workload,
    read_trace,
)

NUM_REQUESTS = 2000
MOST_GENERATED = 1_000_000
"""Requests of a workload: more would hold more tokens than ids can tell apart."""


def read_requests(
    path: Path,
    trace_format: str,
    on_error: OnError,
    limit: int | None,
    tokenizer: Path | None,
) -> Trace:
    """Return the requests of a trace."""
    with says_how_to_skip():
        trace = read_trace(path, trace_format, on_error, tokenizer)
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


def generate_requests(workload: str, seed: int, limit: int | None, seats: int) -> Trace:
    """Return a workload's requests."""
    if limit is not None and limit > MOST_GENERATED:
        raise ReplayError(
            f"--limit {limit:,}: at most {MOST_GENERATED:,} requests are generated; a TRACE may "
            "have more"
        )
    return generate_workload(workload, seed, limit or NUM_REQUESTS, seats)
