"""The manager in plain Python, written to be read: what the fast one is compared with."""

from hybrid_blocks.reference.manager import ReferenceManager

__all__ = ["ReferenceManager"]
