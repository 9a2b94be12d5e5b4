"""The one line that says what is active in an engine."""

from collections import Counter

import vllm
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

import hybrid_blocks
from hybrid_blocks.vllm.level import Level

logger = init_logger("vllm.hybrid_blocks")


_REFUSALS: list[str] = []
"""Why this process refused level ``natural``: its manager of blocks says so, and no one else."""


def refused(why: str | None) -> None:
    """Take note of why a plan is none of level ``natural``; None if it is."""
    _REFUSALS[:] = [] if why is None else [why]


def why_refused() -> str | None:
    """Return why the last plan of this process is none of level ``natural``; None if it is."""
    return _REFUSALS[0] if _REFUSALS else None


def log(level: Level, config: KVCacheConfig, reason: str | None, *, is_told: bool = False) -> None:
    """Say which level an engine runs at, over which groups, and why not a higher one.

    A level below the one asked for is a warning, unless the process has logged it before.
    """
    kinds = Counter(
        type(group.kv_cache_spec).__name__.removesuffix("Spec") for group in config.kv_cache_groups
    )
    groups = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    say = logger.info_once if reason is None or is_told else logger.warning_once
    say(
        "hybrid_blocks %s in vLLM %s: level %s%s; groups: %s; pool: %s %s",
        hybrid_blocks.__version__,
        vllm.__version__,
        level,
        f" ({reason})" if reason else "",
        groups,
        f"{config.num_blocks:,}",
        "slabs" if level is Level.NATURAL else "blocks",
    )
