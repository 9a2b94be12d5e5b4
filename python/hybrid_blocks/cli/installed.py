"""Packages that commands need next to this one."""

from importlib.util import find_spec

from hybrid_blocks.errors import InvalidArgumentError


def need_vllm(or_else: str = "") -> None:
    """Check that vLLM is installed; ``or_else`` is what would do without.

    Raises:
        InvalidArgumentError: it is not; says what to install.

    """
    if find_spec("vllm") is None:
        raise InvalidArgumentError(f"vLLM is not installed; pip install vllm{or_else}")
