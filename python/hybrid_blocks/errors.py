"""What the package raises."""


class HybridBlocksError(Exception):
    """Base of every error of this package. The call that raised it changed nothing."""


class InvalidArgumentError(HybridBlocksError, ValueError):
    """An argument that makes no sense; the message names the value and what would do."""
