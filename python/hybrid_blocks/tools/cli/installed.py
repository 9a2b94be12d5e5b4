"""Packages that commands need next to this one."""

from importlib.util import find_spec

from hybrid_blocks.errors import InvalidArgumentError


def has_vllm() -> bool:
    """Return whether vLLM is installed; a folder of that name is none."""
    found = find_spec("vllm")
    return found is not None and found.origin is not None


def need_vllm(or_else: str = "") -> None:
    """Check that vLLM is installed; ``or_else`` is what would do without.

    Raises:
        InvalidArgumentError: it is not; says what to install.

    """
    if not has_vllm():
        raise InvalidArgumentError(f"vLLM is not installed; pip install vllm{or_else}")
