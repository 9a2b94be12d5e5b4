"""The levels at which vLLM's block management can be replaced."""

import os
from enum import StrEnum

from hybrid_blocks.errors import InvalidArgumentError

VARIABLE = "HYBRID_BLOCKS"
CHECK = "HYBRID_BLOCKS_CHECK"


class Level(StrEnum):
    """How much of vLLM's block management is replaced."""

    OFF = "off"
    """Nothing."""
    POOL = "pool"
    """``BlockPool``, under vLLM's own managers."""
    MANAGER = "manager"
    """``KVCacheManager`` with everything below it, where it covers the engine."""
    NATURAL = "natural"
    """``KVCacheManager``, and the plan of the memory: slabs instead of equal blocks."""


def requested() -> Level:
    """Return the level that the environment asks for; ``manager`` if it says nothing.

    Raises ``InvalidArgumentError`` for a value that names no level.
    """
    value = os.environ.get(VARIABLE, Level.MANAGER)
    try:
        return Level(value)
    except ValueError:
        levels = ", ".join(Level)
        raise InvalidArgumentError(f"{VARIABLE}={value!r} names no level; use {levels}") from None


def is_checked() -> bool:
    """Return whether the environment asks for a check of where each block's content comes from."""
    return os.environ.get(CHECK, "0") not in ("", "0")
