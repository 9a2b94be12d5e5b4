"""The case that ``plan`` plans: a model, its memory, its deployment, a card, and lengths."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.cli.given import Given
from hybrid_blocks.tools.cli.values import each_once
from hybrid_blocks.tools.plan.memory import Gpu, memory_of_gpu, on_cards, parse_cards
from hybrid_blocks.tools.plan.report.verdict import typical_lengths
from hybrid_blocks.units import parse_memory, parse_tokens


class Case(NamedTuple):
    """A model in the memory of each GPU; ``card`` is there if the memory is its estimate."""

    model: Model
    memory_bytes: int
    deployment: Deployment
    card: Gpu | None


def case_of_gpu(
    gpu: str,
    memory: str | None,
    planned: tuple[Model, Deployment],
    utilization: float | None,
    given: Given,
) -> Case:
    """Plan for the cards of ``--gpu``, and estimate their memory where it is not given.

    Where no option splits the model, all cards share it.

    Raises:
        PlanError: as `parse_cards`, `on_cards` and `memory_of_gpu`.

    """
    cards, (model, deployment) = parse_cards(gpu), planned
    if "tp" not in given and "pp" not in given:
        deployment = msgspec.structs.replace(deployment, tp=cards.count or 1)
    deployment = on_cards(deployment, cards)
    if memory is not None:
        return Case(model, parse_memory(memory), deployment, None)
    chosen, memory_bytes, card = memory_of_gpu(cards, model, deployment, utilization)
    return Case(chosen, memory_bytes, deployment, card)


def check_gpu(memory: str | None, gpu: str | None, given: Given) -> None:
    """Refuse a share of cards whose memory is not estimated.

    Raises:
        InvalidArgumentError: ``--gpu-memory-utilization`` without ``--gpu``, or with ``--memory``.

    """
    if gpu is None:
        given.refuse("gpu_memory_utilization", why="without --gpu says nothing; leave it out")
    elif memory is not None:
        given.refuse(
            "gpu_memory_utilization", why="beside --memory, which is what is free; leave it out"
        )


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
    from hybrid_blocks.tools.cli.replay_trace import warn_of  # noqa: PLC0415 - wants numpy
    from hybrid_blocks.tools.trace import read_trace  # noqa: PLC0415

    try:
        trace = read_trace(path)
    except OSError as error:
        raise PlanError(f"--trace {path}: {error.strerror or error}") from None
    warn_of(trace)
    lengths: list[int] = trace.total_tokens.tolist()
    return lengths
