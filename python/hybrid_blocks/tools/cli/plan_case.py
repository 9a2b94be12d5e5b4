"""The case that ``plan`` plans: a model, its memory, its deployment, a card, and lengths."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer

from hybrid_blocks.geometry import capacity, plan_natural
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.cli.options import Given, each_once
from hybrid_blocks.tools.cli.words import append
from hybrid_blocks.tools.plan.memory import (
    Cards,
    Estimate,
    memory_of_gpu,
    note_excess,
    on_cards,
    parse_cards,
)
from hybrid_blocks.tools.plan.report.verdict import typical_lengths
from hybrid_blocks.tools.plan.vllm import plan_vllm
from hybrid_blocks.tools.read.command import OF_BATCH, Command, read_command, with_defaults
from hybrid_blocks.units import parse_memory, parse_tokens


class Case(NamedTuple):
    """A model in the memory of each GPU, which may be ``estimated``."""

    model: Model
    memory_bytes: int
    deployment: Deployment
    estimated: Estimate | None = None


def case_of_gpu(
    gpu: str,
    memory: str | None,
    planned: tuple[Model, Deployment],
    utilization: float | None,
    given: Given,
) -> Case:
    """Plan for the cards of ``--gpu``, and estimate their memory where it is not given.

    Where no option splits the model, all cards share it. A step is as large as vLLM's there.
    """
    cards, (model, deployment) = parse_cards(gpu), planned
    if "tp" not in given and "pp" not in given:
        deployment = msgspec.structs.replace(deployment, tp=cards.count or 1)
    options = {name: getattr(deployment, name) for name in OF_BATCH if name in given}
    model, deployment = with_defaults(model, on_cards(deployment, cards), options, cards)
    if memory is not None:
        memory_bytes = parse_memory(memory)
        return Case(note_excess(model, memory_bytes, cards), memory_bytes, deployment)
    chosen, estimated = memory_of_gpu(cards, model, deployment, utilization)
    return Case(chosen, estimated.free, deployment, estimated)


def check_gpu(memory: str | None, gpu: str | None, given: Given) -> None:
    """Refuse a share of cards whose memory is not estimated."""
    if gpu is None:
        given.refuse("gpu_memory_utilization", why="without --gpu says nothing; leave it out")
    elif memory is not None:
        given.refuse(
            "gpu_memory_utilization", why="beside --memory, which is what is free; leave it out"
        )


def asked_lengths(lengths: str | None, trace: Path | None, limit: int) -> list[int]:
    """Return those of ``--lengths``; without it and without a trace, typical ones."""
    if lengths is None:
        return [] if trace is not None else typical_lengths(limit)
    asked = [parse_tokens(text) for text in lengths.split(",")]
    each_once("--lengths", asked)
    return asked


def trace_lengths(path: Path | None) -> list[int]:
    """Return the tokens of each request of a trace."""
    if path is None:
        return []
    from hybrid_blocks.tools.cli.replay_run import warn_of  # noqa: PLC0415 - wants numpy
    from hybrid_blocks.tools.trace import read_trace  # noqa: PLC0415

    try:
        trace = read_trace(path)
    except OSError as error:
        raise PlanError(f"--trace {path}: {error.strerror or error}") from None
    warn_of(trace)
    lengths: list[int] = trace.total_tokens.tolist()
    return lengths


_OF_COMMAND = (
    *("tp", "pp", "kv_cache_dtype", "mamba_ssm_dtype", "max_model_len", "max_num_batched_tokens"),
    *("max_num_seqs", "speculative", "mamba_cache_mode", "block_size"),
    "layers",
    *("in_flight_batches", "gpu_memory_utilization"),
)


def plan_of_command(  # noqa: PLR0917 - what stands before the command
    context: typer.Context,
    words: Sequence[str],
    source: str | None,
    memory: str | None,
    gpu: str | None,
    given: Given,
) -> Case:
    """Return what a pasted command says: the model, the memory, the deployment and the card."""
    given.refuse(*_OF_COMMAND, why="beside a pasted command: write it as vLLM's option there")
    cards = None if gpu is None else parse_cards(gpu)
    command = read_command(words, source, cards)
    append(context, command.shown)
    return case_of_command(command, memory, cards)


def case_of_command(command: Command, memory: str | None, cards: Cards | None = None) -> Case:
    """Return the case of a command in the memory of ``--memory``, else in its own or the cards'."""
    memory_bytes = command.memory_bytes
    if memory is not None and memory_bytes is not None:
        raise PlanError(
            f"--memory {memory} beside --kv-cache-memory-bytes {memory_bytes}: both are the memory "
            "of the cache; leave one out"
        )
    if memory is not None:
        memory_bytes = parse_memory(memory)
    model, deployment, estimated = command.model, command.deployment, None
    if cards is not None:
        deployment = on_cards(deployment, cards)
    if memory_bytes is not None and cards is not None:
        model = note_excess(model, memory_bytes, cards)
    elif cards is not None:
        utilization = command.options.get("gpu_memory_utilization")
        model, estimated = memory_of_gpu(cards, model, deployment, utilization)
        memory_bytes = estimated.free
    if memory_bytes is None:
        raise PlanError(
            "the command does not say how much memory is free: give --memory before --, the "
            "'Available KV cache memory' of vLLM's log, for example --memory 24GiB; or the cards, "
            "for example --gpu 2xH100-80GB, for an estimate"
        )
    if command.fits:
        model, deployment = _fitted(model, memory_bytes, deployment)
    return Case(model, memory_bytes, deployment, estimated)


def _fitted(model: Model, memory_bytes: int, deployment: Deployment) -> tuple[Model, Deployment]:
    """Cut the maximum length to what fits, as ``--max-model-len auto`` does."""
    geometry = plan_natural(model, memory_bytes, deployment)
    limit = deployment.length(model)
    natural = capacity.longest(geometry, limit)
    try:
        longest = plan_vllm(model, memory_bytes, deployment).longest() or natural
    except PlanError:
        longest = natural
    if not longest:
        return model, deployment
    note = f"--max-model-len auto: {longest:,} tokens fit"
    if natural > longest:
        note += f"; {natural:,} at level natural"
    return (
        msgspec.structs.replace(model, notes=(*model.notes, note)),
        msgspec.structs.replace(deployment, max_model_len=longest),
    )
