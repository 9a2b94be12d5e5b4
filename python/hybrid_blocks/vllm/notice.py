"""The one line that says what is active in an engine."""

from collections import Counter

import vllm
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

import hybrid_blocks
from hybrid_blocks.vllm.level import Level

logger = init_logger("vllm.hybrid_blocks")


def log(level: Level, config: KVCacheConfig, reason: str | None) -> None:
    """Say which level an engine runs at, over which groups, and why not a higher one."""
    kinds = Counter(
        type(group.kv_cache_spec).__name__.removesuffix("Spec") for group in config.kv_cache_groups
    )
    groups = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    logger.info_once(
        "hybrid_blocks %s in vLLM %s: level %s%s; groups: %s; pool: %s %s",
        hybrid_blocks.__version__,
        vllm.__version__,
        level,
        f" ({reason})" if reason else "",
        groups,
        f"{config.num_blocks:,}",
        "slabs" if level is Level.NATURAL else "blocks",
    )
