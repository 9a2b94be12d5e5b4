"""A table of plans over several values of some options."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

import msgspec
from rich.table import Table

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.report.report import Report, make_report
from hybrid_blocks.plan.report.tables import concurrency, logged
from hybrid_blocks.terminal import grid
from hybrid_blocks.units import parse_memory, parse_tokens

_NO_OPTION: Final = "level_refusal"
"""A field of a deployment that follows from options of other kinds."""

_ALIASES: Final = {
    "kv_dtype": "kv_cache_dtype",
    "ssm_dtype": "mamba_ssm_dtype",
    "mode": "mamba_cache_mode",
    "spec": "num_speculative_tokens",
}
_TEXT: Final = ("kv_cache_dtype", "mamba_ssm_dtype", "mamba_cache_mode")
_TOKENS: Final = ("max_model_len", "max_num_batched_tokens", "block_size")


class Axis(msgspec.Struct, frozen=True):
    """An option (or ``memory``) under the name the user gave it, and its values."""

    name: str
    option: str
    values: tuple[int | str, ...]


def parse_axis(text: str) -> Axis:
    """Axis of ``tp=1,2,4``; the names are those of the options, dashes or underscores.

    Raises:
        PlanError: not of this form, no such option, or a value of the wrong type.

    """
    name, equals, values = text.partition("=")
    option = name.strip().lstrip("-").replace("-", "_")
    option = _ALIASES.get(option, option)
    known = ("memory", *(it for it in Deployment.__struct_fields__ if it != _NO_OPTION))
    if not equals or option not in known or not values:
        raise PlanError(
            f"--sweep {text!r} is no axis; write for example tp=1,2,4 (known: {', '.join(known)})"
        )
    return Axis(
        name.strip().lstrip("-"),
        option,
        tuple(_value(option, value) for value in values.split(",")),
    )


def _value(option: str, text: str) -> int | str:
    if option == "memory":
        return parse_memory(text)
    if option in _TEXT:
        return text
    if option in _TOKENS:
        return parse_tokens(text)
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"--sweep {option}: {text!r} is no whole number") from None


def sweep(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    axes: Sequence[Axis],
) -> Iterator[tuple[tuple[int | str, ...], Report | PlanError]]:
    """Plan every combination of values; one that cannot be planned yields its error."""
    for values in product(*(axis.values for axis in axes)):
        chosen = dict(zip((axis.option for axis in axes), values, strict=True))
        memory = chosen.pop("memory", memory_bytes)
        try:
            point = msgspec.structs.replace(deployment, **chosen)
            yield values, make_report(model, int(memory), point)
        except PlanError as error:
            yield values, error


def point_name(axes: Sequence[Axis], values: Sequence[int | str]) -> str:
    """Name a combination as its axes were written: ``tp=3 kv-dtype=fp8``."""
    return " ".join(f"{axis.name}={value}" for axis, value in zip(axes, values, strict=True))


def sweep_table(
    model: Model,
    axes: Sequence[Axis],
    results: Sequence[tuple[tuple[int | str, ...], Report | PlanError]],
) -> Table:
    """One row a combination, the figures of both plans side by side."""
    table = grid(
        model.name,
        *(axis.name for axis in axes),
        "vLLM block",
        "vLLM blocks",
        "vLLM logs",
        "vLLM tokens",
        "vLLM requests",
        "natural tokens",
        "natural requests",
    )
    for values, result in results:
        shown = [f"{value:,}" if isinstance(value, int) else value for value in values]
        figures = ("-",) * 7 if isinstance(result, PlanError) else _figures(result)
        table.add_row(*shown, *figures)
    return table


def _figures(report: Report) -> tuple[str, ...]:
    vllm, natural = report.vllm, report.natural
    theirs = (
        ("-",) * 5
        if vllm is None
        else (
            f"{vllm.block_tokens:,}",
            f"{vllm.num_blocks:,}",
            logged(vllm),
            f"{vllm.tokens:,}",
            concurrency(vllm.lengths[0]),
        )
    )
    return (*theirs, f"{natural.tokens:,}", concurrency(natural.lengths[0]))
