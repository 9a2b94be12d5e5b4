"""Offload of hybrid models' caches to host memory and disk: a spec for vLLM's connector.

A state and the attention that leads to it are kept and evicted together. ``docs/offload.md`` has
the options.
"""

from typing import TYPE_CHECKING, Any

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.vllm import surface

if TYPE_CHECKING:
    from hybrid_blocks.offload.spec import HybridOffloadingSpec

__all__ = ["HybridOffloadingSpec"]


def check_release() -> None:
    """Raise ``HybridBlocksError`` with what the installed vLLM lacks that offload uses of it."""
    import vllm  # noqa: PLC0415

    if changes := surface.part_differences("offload", vllm.__version__):
        raise HybridBlocksError(
            f"HybridOffloadingSpec does not fit vLLM {vllm.__version__}: {'; '.join(changes)}; "
            f"use vLLM {surface.support.TESTED[-1]}, or vLLM's own spec"
        )


def __getattr__(name: str) -> Any:
    """Import vLLM only at the first use of the spec."""
    if name == "HybridOffloadingSpec":
        # The check comes first: in another release of vLLM the spec's imports may be missing.
        check_release()
        from hybrid_blocks.offload.spec import HybridOffloadingSpec  # noqa: PLC0415 - imports vLLM

        return HybridOffloadingSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
