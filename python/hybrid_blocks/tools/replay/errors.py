"""The errors of a replay."""

from hybrid_blocks.errors import HybridBlocksError


class ReplayError(HybridBlocksError, ValueError):
    """A replay that cannot run with these options."""


class RefusedRequestError(ReplayError):
    """A request that a manager cannot run even when nothing else runs.

    Attributes:
        request: its index in the trace.
    """

    def __init__(self, request: int, message: str) -> None:
        super().__init__(message)
        self.request = request
