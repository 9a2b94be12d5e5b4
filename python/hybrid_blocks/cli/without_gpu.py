"""vLLM's code on a machine without a GPU."""

import os


def allow_no_gpu() -> None:
    """Let vLLM be imported without a GPU: it asks for one unless it is told so before."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
