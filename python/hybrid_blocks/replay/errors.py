"""What can be wrong with a replay."""

from hybrid_blocks.errors import HybridBlocksError


class ReplayError(HybridBlocksError, ValueError):
    """A replay that cannot run as it was asked for."""
