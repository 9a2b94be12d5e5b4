"""The points that the live page adds for each reading."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hybrid_blocks.metrics import engine as figures
from hybrid_blocks.metrics.offload import GAUGES
from hybrid_blocks.top.reading import Change, Reading
from hybrid_blocks.view import colors

NOTHING: Final = float("nan")
"""Where there is no figure: lines and areas have a gap."""

OWNERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention": colors.OWNERS["attention"],
        "states": colors.OWNERS["states"],
        "attention_and_states": colors.OWNERS["windows"],
        "checkpoints": colors.pale(colors.OWNERS["states"]),
        "live": colors.OWNERS["attention"],
        "cached": colors.pale(colors.OWNERS["attention"]),
        figures.FREE: colors.TAIL,
    }
)
"""Who holds slabs; below level ``natural``, the states of blocks."""

ENDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "complete": "#2a6f4e",
        "unseen": "#9aa1aa",
        "attention_evicted": "#c62828",
        "window_evicted": "#e39a97",
        "no_checkpoint": "#f58518",
        "alignment": "#b8860b",
    }
)

CHECKPOINTS: Final[Mapping[str, str]] = MappingProxyType(
    {"written": "#f58518", "used": "#2a6f4e", "dropped": "#c62828"}
)

REQUESTS: Final[Mapping[str, str]] = MappingProxyType({"running": "#2a6f4e", "waiting": "#c62828"})

TIERS: Final[Mapping[str, str]] = MappingProxyType(
    {"host_held_bytes": "#4c78a8", "disk_bytes": "#8c6d46"}
)

COLUMNS: Final = ("seconds", *REQUESTS, "found", *OWNERS, *ENDS, *CHECKPOINTS, *TIERS)

_NUMBERED: Final = re.compile(r"_\d+$")


def gap(seconds: float) -> dict[str, float]:
    """Return a point for a time at which nothing answers."""
    return {**dict.fromkeys(COLUMNS, NOTHING), "seconds": seconds}


def point(change: Change, seconds: float) -> dict[str, float]:
    """Return a point for a reading; what counts a second needs one before it."""
    now = change.now
    found = gap(seconds)
    for name in REQUESTS:
        found[name] = now.total(f"vllm:num_requests_{name}")
    found |= _owners(now)
    for name in TIERS:
        if now.of(GAUGES[name].name):
            found[name] = now.total(GAUGES[name].name) / 2**30
    if change.before is not None:
        found |= _rates(change)
    return found


def _owners(now: Reading) -> dict[str, float]:
    """Return slabs by owner, or blocks by state; pools of a kind are one owner."""
    held = now.by("owner", figures.SLABS.name) or now.by("state", figures.BLOCKS.name)
    sums = dict.fromkeys(OWNERS, 0.0) if held else {}
    for owner, count in held.items():
        kind = _NUMBERED.sub("", owner)
        if kind in sums:
            sums[kind] += count
    return sums


def _rates(change: Change) -> dict[str, float]:
    found = {end: change.counted(figures.HITS.name, ended_by=end) for end in ENDS}
    found |= {
        "written": change.counted(figures.CHECKPOINTS_WRITTEN.name),
        "used": change.counted(figures.FORKS.name),
        "dropped": change.counted(figures.CHECKPOINTS_DROPPED.name),
    }
    asked = change.counted("vllm:prefix_cache_queries_total")
    if asked:
        found["found"] = 100 * change.counted("vllm:prefix_cache_hits_total") / asked
    return found
