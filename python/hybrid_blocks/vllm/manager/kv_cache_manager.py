"""The class in place of vLLM's ``KVCacheManager``, at the level of the environment variable."""

from collections import Counter
from typing import Any, ClassVar, Self

import vllm
from vllm.v1.core.kv_cache_manager import KVCacheManager as VllmKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.stats import PrefixCacheStats

import hybrid_blocks
from hybrid_blocks import metrics as figures
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.metrics import Sample
from hybrid_blocks.recording.recorder import OF_PROCESS
from hybrid_blocks.vllm.level import (
    VARIABLE,
    Level,
    checkpoints,
    grant,
    publishes_usable_only,
    requested,
)
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.metrics import Publisher
from hybrid_blocks.vllm.metrics.served import engine_labels

__all__ = ["KVCacheManager", "VllmKVCacheManager"]


_REFUSALS: list[str] = []
"""Why this process refused level ``natural``: its manager of blocks says so, and no one else."""


def note_refusal(why: str | None) -> None:
    """Take note of why a plan is none of level ``natural``; None if it is."""
    _REFUSALS[:] = [] if why is None else [why]


def noted_refusal() -> str | None:
    """Return why the last plan of this process is none of level ``natural``; None if it is."""
    return _REFUSALS[0] if _REFUSALS else None


def log_level(
    level: Level, config: KVCacheConfig, reason: str | None, *, is_warned_of: bool = False
) -> None:
    """Say which level an engine runs at, over which groups, and why not a higher one.

    A level below the one asked for is a warning, unless the process has logged it before.
    """
    kinds = Counter(
        type(group.kv_cache_spec).__name__.removesuffix("Spec") for group in config.kv_cache_groups
    )
    groups = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    say = logger.info_once if reason is None or is_warned_of else logger.warning_once
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


class KVCacheManager(VllmKVCacheManager):
    """vLLM's manager over the pool in Rust; where it can, its ``native`` subclass."""

    hybrid_blocks_level = Level.POOL
    native: ClassVar[type["KVCacheManager"] | None] = None
    """The manager of level ``manager``, once it is installed."""
    natural: ClassVar[type["KVCacheManager"] | None] = None
    """The manager over slabs, once it is installed."""

    def __new__(cls, kv_cache_config: KVCacheConfig, *_args: Any, **kwargs: Any) -> Self:
        """Make the native manager if it is requested and covers the engine."""
        if cls is not KVCacheManager:
            return super().__new__(cls)
        is_slabbed = isinstance(kv_cache_config, NaturalKVCacheConfig)
        chosen = cls.natural if is_slabbed else cls.native
        reason: str | None = "this process, where it is not installed"
        if chosen is not None:
            reason = chosen.unsupported_reason(kv_cache_config, **kwargs)
        if is_slabbed and reason is not None:
            raise InvalidArgumentError(
                f"the KV cache is laid out in slabs, which only level natural manages, and it does "
                f"not cover {reason}; set {VARIABLE}=manager"
            )
        is_asked_for = requested() in (Level.MANAGER, Level.NATURAL)
        if chosen is None or reason is not None or not (is_slabbed or is_asked_for):
            return super().__new__(cls)
        return chosen.__new__(chosen, kv_cache_config)  # type: ignore[return-value]

    def __init__(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_config, *args, **kwargs)
        self._publishes_usable_only = publishes_usable_only()
        self._checkpoints = checkpoints()
        warned_of = reason = None
        if self.hybrid_blocks_level is not requested():
            # The plugin warned of what the installed vLLM lacks when vLLM loaded it.
            warned_of = reason = grant(requested()).reason
            if reason is None and self.native is not None:
                reason = self.native.unsupported_reason(kv_cache_config, **kwargs)
            if reason is None:
                reason = noted_refusal()
        log_level(
            self.hybrid_blocks_level, kv_cache_config, reason, is_warned_of=warned_of is not None
        )
        info = figures.INFO.sample(
            1,
            version=hybrid_blocks.__version__,
            vllm_version=vllm.__version__,
            level=self.hybrid_blocks_level,
            reason=reason or "",
        )
        self._publisher = Publisher(engine_labels(), [info])

    @classmethod
    def unsupported_reason(cls, kv_cache_config: KVCacheConfig, **kwargs: Any) -> str | None:  # noqa: ARG003
        """Return why an engine cannot have this manager, or ``None`` if it can."""
        return None

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return vLLM's statistics since the last call, once a step; publish ours."""
        # An engine in which nothing runs takes no further step that could tell.
        self._publisher.publish(self._all_samples, at_once=not self.usage)
        return super().make_prefix_cache_stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; running requests prevent it. Return whether it was done."""
        is_reset = super().reset_prefix_cache()
        self._publisher.publish(self._all_samples, at_once=True)
        return is_reset

    def _all_samples(self) -> list[Sample]:
        dropped = [recorder.total_dropped for recorder in OF_PROCESS if recorder]
        return [*self._samples(), *map(figures.RECORD_DROPPED.sample, dropped)]

    def _samples(self) -> list[Sample]:
        blocks: Any = self.block_pool.blocks
        cached, available = blocks.num_cached, blocks.num_free
        counts = {"live": len(blocks) - 1 - available, "cached": cached, "free": available - cached}
        return [figures.BLOCKS.sample(count, state=state) for state, count in counts.items()]
