"""What the adapter needs of vLLM, recorded, and how the installed vLLM differs from it."""

from hybrid_blocks.vllm.surface.compare import Tier, differences, offload_differences

__all__ = ["Tier", "differences", "offload_differences"]
