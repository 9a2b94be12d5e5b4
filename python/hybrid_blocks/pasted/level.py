"""The level that the variables of a command ask for."""

from collections.abc import Mapping
from typing import Final

from hybrid_blocks.model import PlanError

LEVELS: Final = ("off", "pool", "manager", "natural")


def level_of(environment: Mapping[str, str]) -> str | None:
    """Return the value of ``HYBRID_BLOCKS``, None where it is not set.

    Raises:
        PlanError: it names no level.

    """
    level = environment.get("HYBRID_BLOCKS")
    if level is not None and level not in LEVELS:
        raise PlanError(f"HYBRID_BLOCKS={level} names no level; use {', '.join(LEVELS)}")
    return level
