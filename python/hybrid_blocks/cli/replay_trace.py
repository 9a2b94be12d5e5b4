"""The requests that ``replay`` runs: a trace's, or generated ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybrid_blocks.cli.output import (
    warn,
)
from hybrid_blocks.replay import (
    ReplayError,
)
from hybrid_blocks.trace import (
    AUTO,
    BRANCHING,
    DamagedLineError,
    OnError,
    Trace,
    generate_clients,
    generate_trace,
    generate_workload,
    read_trace,
)

NUM_REQUESTS = 2000
MOST_CLIENTS_ASK = 4000
MOST_GENERATED = 1_000_000
"""Requests of a workload: more would hold more tokens than ids can tell apart."""


def read_requests(
    path: Path,
    trace_format: str,
    on_error: OnError,
    limit: int | None,
    tokenizer: Path | None,
) -> Trace:
    """Return the requests of a trace or of a folder of clients."""
    if path.is_dir():
        if trace_format != AUTO or tokenizer is not None:
            raise ReplayError(f"{path} is a folder of clients: it has no --format and no text")
        return generate_clients(path, limit or MOST_CLIENTS_ASK)
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
    if guessed := trace.guessed_answers:
        lines = "1 line does" if guessed == 1 else f"{guessed:,} lines do"
        warn(
            f"{lines} not tell the length of the answer: it counts max_tokens, or else 1 token. "
            'response is a text, {"text": …}, or what the API returned'
        )
    for note in trace.notes:
        warn(note)


def generate_requests(workload: str, seed: int, limit: int | None, seats: int) -> Trace:
    """Return a workload's requests."""
    if limit is not None and limit > MOST_GENERATED:
        raise ReplayError(
            f"--limit {limit:,}: at most {MOST_GENERATED:,} requests are generated; a TRACE may "
            "have more"
        )
    if workload != BRANCHING:
        return generate_workload(workload, seed, limit or NUM_REQUESTS, seats)
    trace = generate_trace(seed)
    return trace if limit is None else trace.head(limit)
