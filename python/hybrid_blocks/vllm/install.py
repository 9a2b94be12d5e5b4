"""The swap of vLLM's classes for ours."""

from collections.abc import Callable
from typing import Any

from vllm.v1.core import block_pool as vllm_block_pool
from vllm.v1.core import kv_cache_manager as vllm_kv_cache_manager

from hybrid_blocks.vllm import metrics
from hybrid_blocks.vllm.level import (
    Level,
    grant,
    is_checked,
    is_tested,
    requested,
    scheduler_grant,
    worker_grant,
)
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.manager.hasher import (  # type: ignore[attr-defined]
    get_request_block_hasher,
    vllm_get_request_block_hasher,
)
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager, VllmKVCacheManager
from hybrid_blocks.vllm.metrics import ClientsCollector, MultiProcessCollector, served  # type: ignore[attr-defined]
from hybrid_blocks.vllm.metrics.served import PrometheusStatLogger, VllmPrometheusStatLogger  # type: ignore[attr-defined]
from hybrid_blocks.vllm.pool import BlockPool, VllmBlockPool
from hybrid_blocks.vllm.swap import back, swap

_REPLACEMENTS: tuple[tuple[Any, Any], ...] = (
    (VllmBlockPool, BlockPool),
    (VllmKVCacheManager, KVCacheManager),
    (vllm_get_request_block_hasher, get_request_block_hasher),
    (ClientsCollector, MultiProcessCollector),
    (VllmPrometheusStatLogger, PrometheusStatLogger),
    *served.replacements(),
)

_UNDO: list[Callable[[], None]] = []
"""Calls that take back what was installed."""

_SWAPPED: set[tuple[Any, Any]] = set()


def install(level: Level | None = None, *, schedulers: bool = False) -> None:
    """Put this package's classes in place of vLLM's, by default at the requested level.

    A level does not import what only the levels above it need of vLLM. ``schedulers`` are those
    that decode in one call, on a tested release; classes derived from vLLM's two have them too. A
    second call changes nothing.
    """
    level, pairs = level or requested(), list(_REPLACEMENTS)
    # The comparison is with vLLM's own classes, and what is imported here names them: both come
    # before they are replaced.
    grant(level)
    if level is not Level.POOL:
        from hybrid_blocks.vllm.manager.native import NativeKVCacheManager  # noqa: PLC0415

        KVCacheManager.native = NativeKVCacheManager
        pairs += _copies(level)
    if level is Level.NATURAL:
        from hybrid_blocks.vllm.natural import install as natural  # noqa: PLC0415

        natural.install()
        _UNDO.append(natural.uninstall)
        pairs += natural.functions()
    if schedulers and is_tested():
        pairs += _schedulers()
    if is_checked():
        from hybrid_blocks.vllm import check  # noqa: PLC0415

        _UNDO.append(check.install())
    _swap([pair for pair in pairs if pair not in _SWAPPED])
    metrics.register()


def _swap(pairs: list[tuple[Any, Any]]) -> None:
    """Swap, and remember which names were ours before: users keep these when vLLM's come back."""
    if not pairs:
        return
    ours = swap(pairs)
    _SWAPPED.update(pairs)

    def undo() -> None:
        swap(back(pairs), ours)
        _SWAPPED.difference_update(pairs)

    _UNDO.append(undo)


def _schedulers() -> tuple[tuple[Any, Any], ...]:
    if why := scheduler_grant().reason:
        logger.info_once("hybrid_blocks: vLLM's own code schedules requests: %s", why)
        return ()
    from hybrid_blocks.vllm.scheduler import one_call  # noqa: PLC0415

    return one_call.REPLACEMENTS


def _copies(level: Level) -> tuple[tuple[Any, Any], ...]:
    """Return what copies blocks by this package's kernels, where vLLM asks for it as recorded."""
    if why := worker_grant(level).reason:
        logger.info_once("hybrid_blocks: vLLM's own function copies cache blocks: %s", why)
        return ()
    from hybrid_blocks.vllm.worker import block_copies  # noqa: PLC0415

    return block_copies.REPLACEMENTS


def uninstall() -> None:
    """Put vLLM's classes back. Objects that exist already stay what they are."""
    while _UNDO:
        _UNDO.pop()()


def is_installed() -> bool:
    """Return whether vLLM's names stand for this package's classes."""
    return (
        vllm_block_pool.BlockPool is BlockPool
        and vllm_kv_cache_manager.KVCacheManager is KVCacheManager
    )
