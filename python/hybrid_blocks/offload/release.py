"""Whether the installed vLLM has what offload uses of it."""

import vllm

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.vllm.surface import offload_differences, support


def check() -> None:
    """Raise ``HybridBlocksError`` with what a vLLM lacks that offload does not fit."""
    if changes := offload_differences(vllm.__version__):
        raise HybridBlocksError(
            f"HybridOffloadingSpec does not fit vLLM {vllm.__version__}: {'; '.join(changes)}; "
            f"use vLLM {support.TESTED[-1]}, or vLLM's own spec"
        )
