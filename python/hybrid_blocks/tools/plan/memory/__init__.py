"""The free memory of a card, estimated where it was not measured."""

from hybrid_blocks.tools.plan.memory.card import Cards, parse_cards
from hybrid_blocks.tools.plan.memory.estimate import (
    UTILIZATION,
    Estimate,
    Gpu,
    estimate,
    memory_of_gpu,
    on_cards,
)

__all__ = [
    "UTILIZATION",
    "Cards",
    "Estimate",
    "Gpu",
    "estimate",
    "memory_of_gpu",
    "on_cards",
    "parse_cards",
]
