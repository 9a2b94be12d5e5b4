"""Offload of hybrid models' caches to host memory and disk: a spec for vLLM's connector.

A state and the attention that leads to it are kept and evicted together. ``docs/offload.md`` has
the options.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_blocks.offload.spec import HybridOffloadingSpec

__all__ = ["HybridOffloadingSpec"]


def __getattr__(name: str) -> Any:
    """Import vLLM only at the first use of the spec."""
    if name == "HybridOffloadingSpec":
        from hybrid_blocks.offload import release  # noqa: PLC0415 - imports vLLM

        # The check comes first: in another release of vLLM the spec's imports may be missing.
        release.check()
        from hybrid_blocks.offload.spec import HybridOffloadingSpec  # noqa: PLC0415 - imports vLLM

        return HybridOffloadingSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
