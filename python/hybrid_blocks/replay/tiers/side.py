"""Whose manager keeps the tiers below the device."""

from enum import StrEnum

from hybrid_blocks.plan.natural_refusals import natural_refusals
from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.errors import ReplayError


class Side(StrEnum):
    """A manager of the tiers, by its name on the command line."""

    NATURAL = "natural"
    """``HybridOffloadingSpec`` at level ``natural``: slabs on the device too."""
    HYBRID = "hybrid"
    """``HybridOffloadingSpec`` at level ``manager``, over vLLM's own plan of the device."""
    LAZY = "lazy"
    """The same, with stores when requests pause."""
    LRU = "lru"
    """vLLM's ``TieringOffloadingSpec``, evicting by age."""
    ARC = "arc"
    """The same, evicting by age and frequency."""
    PROMPTS = "prompts"
    """``lru`` as vLLM sets it up if nothing is said: answers are not stored."""

    @property
    def is_natural(self) -> bool:
        """Whether the device is that of level ``natural``."""
        return self is Side.NATURAL

    @property
    def is_ours(self) -> bool:
        """Whether ``HybridOffloadingSpec`` keeps the tiers."""
        return self in {Side.NATURAL, Side.HYBRID, Side.LAZY}

    @property
    def label(self) -> str:
        """Its name in a report."""
        ours = {
            Side.NATURAL: "hybrid_blocks natural",
            Side.HYBRID: "hybrid_blocks",
            Side.LAZY: "hybrid_blocks lazy",
        }
        return ours.get(self, f"vllm {self}")


DEFAULT = (Side.NATURAL, Side.HYBRID, Side.LRU, Side.ARC)


def default_sides(cache: Cache) -> tuple[Side, ...]:
    """Return the managers to compare over a cache if the user names none."""
    differs = not all(group.grows for group in cache.geometry.groups)
    if differs and not refusals_of(cache):
        return DEFAULT
    return tuple(side for side in DEFAULT if not side.is_natural)


def refusals_of(cache: Cache) -> list[str]:
    """Return the reasons why no engine of a cache runs at level ``natural``."""
    if cache.model is None or cache.deployment is None:
        return []
    return natural_refusals(cache.model, cache.deployment)


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
