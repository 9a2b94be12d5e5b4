"""Plans: what fits into a GPU's free KV memory, in this project's geometry and in vLLM's."""

from hybrid_blocks.geometry import ArenaPlan, GroupPlan, plan_natural
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.tools.plan.vllm import VllmPlan, plan_vllm

__all__ = ["ArenaPlan", "Deployment", "GroupPlan", "VllmPlan", "plan_natural", "plan_vllm"]
