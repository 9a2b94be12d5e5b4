"""Two reports next to each other."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.table import Table

from hybrid_blocks.model import PlanError
from hybrid_blocks.plan.report.report import Report
from hybrid_blocks.terminal import grid


def read_report(path: Path) -> Report:
    """Report that ``--json`` wrote.

    Raises:
        PlanError: no such file, or not a report.

    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise PlanError(f"{path}: not a report of --json: {error}") from None


def compare(first: Report, second: Report, names: tuple[str, str]) -> Table:
    """Table of what differs in the options, and of all figures with their ratio."""
    table = grid("comparison", "", *names, "ratio")
    for option, ours, theirs in _options(first, second):
        if ours != theirs:
            table.add_row(option, str(ours), str(theirs), "")
    for figure, ours, theirs in _figures(first, second):
        ratio = f"{theirs / ours:.3f}" if ours and theirs is not None else ""
        table.add_row(figure, _text(ours), _text(theirs), ratio)
    return table


def _options(first: Report, second: Report) -> Iterator[tuple[str, object, object]]:
    yield "model", first.model, second.model
    yield "memory_bytes", first.memory_bytes, second.memory_bytes
    yield "max_model_len", first.max_model_len, second.max_model_len
    for field in first.deployment.__struct_fields__:
        if field != "max_model_len":
            yield field, getattr(first.deployment, field), getattr(second.deployment, field)


def _figures(first: Report, second: Report) -> Iterator[tuple[str, float | None, float | None]]:
    for name, ours, theirs in (
        ("natural", first.natural, second.natural),
        ("vllm", first.vllm, second.vllm),
    ):
        for field in (
            "block_tokens",
            "num_blocks",
            "blocks_per_request",
            "tokens",
            "max_concurrency",
            "max_length",
            "state_slots",
            "cuda_graph_batch",
            "logged_tokens",
            "logged_concurrency",
            "logged_blocks_per_request",
        ):
            one = None if ours is None else getattr(ours, field)
            other = None if theirs is None else getattr(theirs, field)
            if one is not None or other is not None:
                yield f"{name}.{field}", one, other


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
