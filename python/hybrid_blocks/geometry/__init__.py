"""The natural geometry: every group keeps its own page size, inside one arena of slabs."""

from hybrid_blocks.geometry.arena import ArenaPlan, GroupPlan
from hybrid_blocks.geometry.natural import plan_natural

__all__ = ["ArenaPlan", "GroupPlan", "plan_natural"]
