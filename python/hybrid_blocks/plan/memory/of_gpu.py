"""The free memory of cards, with a note on the model that it is an estimate."""

import msgspec

from hybrid_blocks.model import Model
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.memory.card import parse_cards
from hybrid_blocks.plan.memory.estimate import UTILIZATION, estimate
from hybrid_blocks.plan.memory.gpu import Gpu


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
