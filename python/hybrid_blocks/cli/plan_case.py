"""What ``hybrid-blocks plan`` plans: a model, its memory, its deployment, and perhaps a card."""

from typing import NamedTuple

import msgspec

from hybrid_blocks.cli.given import Given
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.memory import Gpu, memory_of_gpu, parse_cards


class Case(NamedTuple):
    """A model in the memory of each GPU; ``card`` is there if the memory is its estimate."""

    model: Model
    memory_bytes: int
    deployment: Deployment
    card: Gpu | None


def case_of_gpu(
    gpu: str, model: Model, deployment: Deployment, utilization: float | None, given: Given
) -> Case:
    """Estimate the memory of ``--gpu``. Where no option splits the model, all cards share it.

    Raises:
        PlanError: as `memory_of_gpu`.

    """
    if "tp" not in given and "pp" not in given:
        deployment = msgspec.structs.replace(deployment, tp=parse_cards(gpu).count or 1)
    chosen, memory_bytes, card = memory_of_gpu(gpu, model, deployment, utilization)
    return Case(chosen, memory_bytes, deployment, card)


def check_gpu(memory: str | None, gpu: str | None, given: Given) -> None:
    """Refuse two sources of one memory, and a share of no card.

    Raises:
        PlanError: both are given.
        InvalidArgumentError: ``--gpu-memory-utilization`` without ``--gpu``.

    """
    if gpu is None:
        given.refuse("gpu_memory_utilization", why="without --gpu says nothing; leave it out")
    elif memory is not None:
        raise PlanError(
            f"--memory {memory} beside --gpu {gpu}: --memory is what is free, --gpu estimates it; "
            "leave one out"
        )
