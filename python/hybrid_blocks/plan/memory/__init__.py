"""The free memory of a card, estimated where it was not measured."""

from hybrid_blocks.plan.memory.card import Cards, parse_cards
from hybrid_blocks.plan.memory.estimate import UTILIZATION, Estimate, estimate
from hybrid_blocks.plan.memory.gpu import Gpu

__all__ = ["UTILIZATION", "Cards", "Estimate", "Gpu", "estimate", "parse_cards"]
