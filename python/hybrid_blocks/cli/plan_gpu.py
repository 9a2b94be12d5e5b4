"""``hybrid-blocks plan --gpu 2xH100-80GB``."""

import msgspec

from hybrid_blocks.cli.given import Given
from hybrid_blocks.model import PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.memory import parse_cards


def with_all_cards(deployment: Deployment, gpu: str | None, given: Given) -> Deployment:
    """Split over all cards of ``--gpu`` where no option says how."""
    if gpu is None or "tp" in given or "pp" in given:
        return deployment
    return msgspec.structs.replace(deployment, tp=parse_cards(gpu).count or 1)


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
