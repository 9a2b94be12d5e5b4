"""``HybridNixlConnector``: vLLM's ``NixlConnector``, also for engines whose blocks lie in slabs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_blocks.offload.nixl.connector import HybridNixlConnector

__all__ = ["HybridNixlConnector"]


def __getattr__(name: str) -> Any:
    """Import vLLM only at the first use of the connector."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hybrid_blocks.offload.nixl import connector  # noqa: PLC0415 - imports vLLM

    return getattr(connector, name)
