"""The error of everything that describes or plans a model."""

from hybrid_blocks.errors import HybridBlocksError


class PlanError(HybridBlocksError, ValueError):
    """A model, a size or an option that cannot be planned; the message is one line for the user."""
