"""The lengths that ``hybrid-blocks plan`` shows."""

from pathlib import Path

from hybrid_blocks.cli.values import each_once
from hybrid_blocks.model import PlanError
from hybrid_blocks.plan.report.verdict import typical_lengths
from hybrid_blocks.units import parse_tokens


def asked_lengths(lengths: str | None, trace: Path | None, limit: int) -> list[int]:
    """Return those of ``--lengths``; without it and without a trace, typical ones.

    Raises:
        InvalidArgumentError: no number of tokens, or one twice.

    """
    if lengths is None:
        return [] if trace is not None else typical_lengths(limit)
    asked = [parse_tokens(text) for text in lengths.split(",")]
    each_once("--lengths", asked)
    return asked


def trace_lengths(path: Path | None) -> list[int]:
    """Return the tokens of each request of a trace.

    Raises:
        PlanError: it cannot be read.

    """
    if path is None:
        return []
    from hybrid_blocks.cli.replay_trace import warn_of  # noqa: PLC0415 - wants numpy
    from hybrid_blocks.trace import read_trace  # noqa: PLC0415

    try:
        trace = read_trace(path)
    except OSError as error:
        raise PlanError(f"--trace {path}: {error.strerror or error}") from None
    warn_of(trace)
    lengths: list[int] = trace.total_tokens.tolist()
    return lengths
