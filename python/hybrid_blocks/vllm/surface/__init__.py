"""The recorded needs of the adapter in vLLM, and how the installed vLLM differs from them."""

from hybrid_blocks.vllm.surface.compare import (
    Tier,
    differences,
    offload_differences,
    recorder_differences,
)

__all__ = ["Tier", "differences", "offload_differences", "recorder_differences"]
