"""Several KV connectors in one engine: each request loads from the one that serves it soonest."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_blocks.offload.multi.connector import HybridMultiConnector, MultiConnector

__all__ = ["HybridMultiConnector", "MultiConnector"]


def __getattr__(name: str) -> Any:
    """Import vLLM only at the first use of the connector."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hybrid_blocks.offload.multi import connector  # noqa: PLC0415 - imports vLLM

    return getattr(connector, name)
