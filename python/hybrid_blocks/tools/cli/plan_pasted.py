"""``hybrid-blocks plan -- vllm serve …``."""

from collections.abc import Sequence

import msgspec
import typer

from hybrid_blocks.geometry import capacity, plan_natural
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.cli.command_line import append
from hybrid_blocks.tools.cli.given import Given
from hybrid_blocks.tools.cli.plan_case import Case
from hybrid_blocks.tools.plan.memory import memory_of_gpu, on_cards, parse_cards
from hybrid_blocks.tools.plan.vllm import plan_vllm
from hybrid_blocks.tools.read.command import read_command
from hybrid_blocks.units import parse_memory

_OF_COMMAND = (
    *("tp", "pp", "kv_cache_dtype", "mamba_ssm_dtype", "max_model_len", "max_num_batched_tokens"),
    *("max_num_seqs", "num_speculative_tokens", "speculative", "mamba_cache_mode", "block_size"),
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
    """Return what a pasted command says: the model, the memory, the deployment and the card.

    Raises:
        PlanError: as `read_command`; or there is no memory, or it is given twice.
        InvalidArgumentError: options that the command itself gives.

    """
    given.refuse(*_OF_COMMAND, why="beside a pasted command: write it as vLLM's option there")
    cards = None if gpu is None else parse_cards(gpu)
    command = read_command(words, source, cards)
    append(context, command.shown)
    memory_bytes = command.memory_bytes
    if memory is not None and memory_bytes is not None:
        raise PlanError(
            f"--memory {memory} beside --kv-cache-memory-bytes {memory_bytes}: both are the memory "
            "of the cache; leave one out"
        )
    if memory is not None:
        memory_bytes = parse_memory(memory)
    model, deployment, card = command.model, command.deployment, None
    if cards is not None:
        deployment = on_cards(deployment, cards)
    if memory_bytes is None and cards is not None:
        utilization = command.options.get("gpu_memory_utilization")
        model, memory_bytes, card = memory_of_gpu(cards, model, deployment, utilization)
    if memory_bytes is None:
        raise PlanError(
            "the command does not say how much memory is free: give --memory before --, the "
            "'Available KV cache memory' of vLLM's log, for example --memory 24GiB; or the cards, "
            "for example --gpu 2xH100-80GB, for an estimate"
        )
    if command.fits:
        model, deployment = _fitted(model, memory_bytes, deployment)
    return Case(model, memory_bytes, deployment, card)


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
