"""What SGLang makes of the same bytes: two pools of a fixed split."""

from hybrid_blocks.plan.sglang.best_ratio import best_ratio
from hybrid_blocks.plan.sglang.plan import SglangPlan, plan_sglang
from hybrid_blocks.plan.sglang.strategy import Strategy, strategies
from hybrid_blocks.plan.sglang.unified import Unified, plan_unified

__all__ = [
    "SglangPlan",
    "Strategy",
    "Unified",
    "best_ratio",
    "plan_sglang",
    "plan_unified",
    "strategies",
]
