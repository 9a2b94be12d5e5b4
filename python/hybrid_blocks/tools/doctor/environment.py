"""Environment variables for a while."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"

ON_CPU: Final = MappingProxyType({"VLLM_TARGET_DEVICE": "cpu"})
"""Without this vLLM asks for a GPU, and its CPU build for instructions that few processors have."""

QUIETLY: Final = MappingProxyType(
    {
        "VLLM_LOGGING_LEVEL": "ERROR",
        # A package of vLLM's would start two processes with each import of vLLM.
        "HUMMING_DISABLE_PARALLEL_BUILD": "1",
    }
)
"""How vLLM is imported where no model is served."""


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Run with these variables, and then as before."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
