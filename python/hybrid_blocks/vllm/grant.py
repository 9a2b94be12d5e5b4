"""The level that the installed vLLM allows, at most the requested one."""

from functools import cache
from typing import Final, NamedTuple

import vllm

from hybrid_blocks.vllm import surface
from hybrid_blocks.vllm.level import Level, requested
from hybrid_blocks.vllm.surface import Tier, support

MOST_NAMED: Final = 8
"""Differences that a message names; the rest are counted."""


class Grant(NamedTuple):
    """The level that runs, and how the installed vLLM differs from the needs of higher ones."""

    level: Level
    differences: tuple[str, ...] = ()

    @property
    def reason(self) -> str | None:
        """Return in words what stands in the way of more, or ``None`` if nothing does."""
        if not self.differences:
            return None
        named = "; ".join(self.differences[:MOST_NAMED])
        more = len(self.differences) - MOST_NAMED
        return f"vLLM {vllm.__version__} differs: {named}" + (
            f"; and {more} more" if more > 0 else ""
        )


def grant(level: Level) -> Grant:
    """Return the highest level up to ``level`` that does not need what the vLLM here lacks."""
    if level is Level.OFF:
        return Grant(Level.OFF)
    found = _differences()
    if found[Tier.POOL]:
        return Grant(Level.OFF, tuple(found[Tier.POOL]))
    if level is Level.POOL:
        return Grant(Level.POOL)
    if found[Tier.MANAGER]:
        return Grant(Level.POOL, tuple(found[Tier.MANAGER]))
    if level is Level.NATURAL and found[Tier.NATURAL]:
        return Grant(Level.MANAGER, tuple(found[Tier.NATURAL]))
    return Grant(level)


def scheduler_grant() -> Grant:
    """Return whether requests may be scheduled in one call: what differs, if they may not."""
    granted = grant(requested())
    if granted.level in (Level.OFF, Level.POOL):
        return granted
    return Grant(granted.level, tuple(_differences()[Tier.SCHEDULER]))


def worker_grant(level: Level) -> Grant:
    """Return whether workers may copy blocks by this package's kernels: what differs, if not."""
    return Grant(level, tuple(_differences()[Tier.WORKER]))


def is_tested() -> bool:
    """Return whether the tests of this package ran with the release that is installed."""
    return support.is_tested(vllm.__version__)


@cache
def _differences() -> dict[Tier, list[str]]:
    return surface.differences(vllm.__version__)
