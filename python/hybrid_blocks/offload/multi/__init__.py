"""Several KV connectors in one engine: each request loads from the one that serves it soonest."""

from hybrid_blocks.offload.multi.connector import HybridMultiConnector, MultiConnector

__all__ = ["HybridMultiConnector", "MultiConnector"]
