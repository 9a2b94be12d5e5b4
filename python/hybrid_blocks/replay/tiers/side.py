"""Whose manager keeps the tiers below the device."""

from enum import StrEnum

from hybrid_blocks.replay.errors import ReplayError


class Side(StrEnum):
    """A manager of the tiers, by its name on the command line."""

    HYBRID = "hybrid"
    """``HybridOffloadingSpec``."""
    LAZY = "lazy"
    """The same, with stores when requests pause."""
    LRU = "lru"
    """vLLM's ``TieringOffloadingSpec``, evicting by age."""
    ARC = "arc"
    """The same, evicting by age and frequency."""
    PROMPTS = "prompts"
    """``lru`` as vLLM sets it up if nothing is said: answers are not stored."""

    @property
    def label(self) -> str:
        """Its name in a report."""
        ours = {Side.HYBRID: "hybrid_blocks", Side.LAZY: "hybrid_blocks lazy"}
        return ours.get(self, f"vllm {self}")


DEFAULT = ",".join((Side.HYBRID, Side.LRU, Side.ARC))


def read_sides(text: str) -> tuple[Side, ...]:
    """Read names with commas between them.

    Raises:
        ReplayError: an unknown name.

    """
    known = ", ".join(Side)
    sides = []
    for name in text.split(","):
        if name not in list(Side):
            raise ReplayError(f"--tiering {name!r} is unknown; known are {known}")
        sides.append(Side(name))
    return tuple(sides)
