"""vLLM's way of sizing a hybrid cache, worked out without vLLM."""

from hybrid_blocks.tools.plan.vllm.plan import VllmPlan, plan_vllm

__all__ = ["VllmPlan", "plan_vllm"]
