"""Environment variables and packages that commands need next to this one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from hybrid_blocks.errors import InvalidArgumentError

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


def has_vllm() -> bool:
    """Return whether vLLM is installed; a folder of that name is none."""
    found = find_spec("vllm")
    return found is not None and found.origin is not None


def need_vllm(or_else: str = "") -> None:
    """Check that vLLM is installed; ``or_else`` is what would do without."""
    if not has_vllm():
        raise InvalidArgumentError(f"vLLM is not installed; pip install vllm{or_else}")


def allow_no_gpu() -> None:
    """Let vLLM be imported without a GPU: it needs one unless its platform is set before."""
    for name, value in (QUIETLY | ON_CPU).items():
        os.environ.setdefault(name, value)
