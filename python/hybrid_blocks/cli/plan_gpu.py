"""``hybrid-blocks plan --gpu 2xH100-80GB``."""

import msgspec

from hybrid_blocks.cli.given import Given
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.memory import UTILIZATION, Gpu, estimate, parse_cards


def with_all_cards(deployment: Deployment, gpu: str | None, given: Given) -> Deployment:
    """Split over all cards of ``--gpu`` where no option says how."""
    if gpu is None or "tp" in given or "pp" in given:
        return deployment
    return msgspec.structs.replace(deployment, tp=parse_cards(gpu).count or 1)


def memory_of_gpu(
    gpu: str, model: Model, deployment: Deployment, utilization: float | None
) -> tuple[Model, int, Gpu]:
    """Return the model with a note on the estimate, the free memory of each card, and the card.

    Raises:
        PlanError: as `parse_cards` and `estimate`.

    """
    cards, share = parse_cards(gpu), utilization or UTILIZATION
    found = estimate(model, deployment, cards, share)
    notes = (*model.notes, found.line, *filter(None, (cards.note,)))
    estimated = Gpu(cards=cards, utilization=share)
    return msgspec.structs.replace(model, notes=notes), found.free, estimated


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
