"""What is wrong with a question of sizing."""

from hybrid_blocks.errors import InvalidArgumentError


class SizingError(InvalidArgumentError):
    """A target, a price or a recording that cannot be used; the message says what would do."""
