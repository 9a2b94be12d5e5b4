"""``HybridNixlConnector``: vLLM's ``NixlConnector``, also for engines whose blocks lie in slabs."""

from hybrid_blocks.offload.nixl.connector import HybridNixlConnector

__all__ = ["HybridNixlConnector"]
