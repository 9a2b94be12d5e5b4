"""The cards of ``--gpu``, for deployments that split over more or fewer of them."""

import msgspec

from hybrid_blocks.model import Model
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.memory.card import Cards
from hybrid_blocks.plan.memory.estimate import UTILIZATION, estimate


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of card, and the share of it that an engine may use."""

    cards: Cards
    utilization: float = UTILIZATION

    def free(self, model: Model, deployment: Deployment) -> int:
        """Estimate the free memory of each card, with as many cards as there are ranks.

        Raises:
            PlanError: as `estimate`.

        """
        any_number = msgspec.structs.replace(self.cards, count=None)
        return estimate(model, deployment, any_number, self.utilization).free

    def option(self, deployment: Deployment) -> str:
        """Return the option that gives a deployment its cards."""
        ranks = deployment.tp * deployment.pp
        return f"--gpu {ranks}x{self.cards.name}"
