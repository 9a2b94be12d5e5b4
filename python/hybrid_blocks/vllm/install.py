"""The swap of vLLM's classes for ours."""

from collections.abc import Callable
from typing import Any

from vllm.logger import init_logger
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
from hybrid_blocks.vllm.manager.hasher import (  # type: ignore[attr-defined]
    get_request_block_hasher,
    vllm_get_request_block_hasher,
)
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager, VllmKVCacheManager
from hybrid_blocks.vllm.metrics import ClientsCollector, MultiProcessCollector, served  # type: ignore[attr-defined]
from hybrid_blocks.vllm.metrics.served import PrometheusStatLogger, VllmPrometheusStatLogger  # type: ignore[attr-defined]
from hybrid_blocks.vllm.pool import BlockPool, VllmBlockPool
from hybrid_blocks.vllm.swap import back, named, swap

logger = init_logger("vllm.hybrid_blocks")

_REPLACEMENTS: tuple[tuple[Any, Any], ...] = (
    (VllmBlockPool, BlockPool),
    (VllmKVCacheManager, KVCacheManager),
    (vllm_get_request_block_hasher, get_request_block_hasher),
    (ClientsCollector, MultiProcessCollector),
    (VllmPrometheusStatLogger, PrometheusStatLogger),
    *served.replacements(),
)

_UNDO: list[Callable[[], None]] = []
"""Calls that take back the replacements of single levels."""


def install(level: Level | None = None) -> None:
    """Put this package's classes in place of vLLM's, by default at the requested level.

    A level does not import what only the levels above it need of vLLM. A second call changes
    nothing.
    """
    level, checks = level or requested(), is_checked()
    # The comparison is with vLLM's own classes, so it comes before they are replaced.
    grant(level)
    if level is not Level.POOL:
        from hybrid_blocks.vllm.manager.native import NativeKVCacheManager  # noqa: PLC0415

        KVCacheManager.native = NativeKVCacheManager
        _install_copies(level)
    if level is Level.NATURAL:
        from hybrid_blocks.vllm.natural import install as natural  # noqa: PLC0415

        natural.install()
        _UNDO.append(natural.uninstall)
    swap(_REPLACEMENTS)
    metrics.register()
    if checks:
        from hybrid_blocks.vllm import check  # noqa: PLC0415

        _UNDO.append(check.install())


def install_schedulers() -> None:
    """Put the schedulers that decode in one call in place of vLLM's two, on a tested release.

    Classes derived from vLLM's two have them too. A second call changes nothing.
    """
    if not is_tested():
        return
    if why := scheduler_grant().reason:
        logger.info_once("hybrid_blocks: vLLM's own code schedules requests: %s", why)
        return
    from hybrid_blocks.vllm.scheduler import one_call  # noqa: PLC0415

    if not one_call.is_installed():
        # Users may name ours themselves, and keep them when vLLM's come back.
        ours = named([replacement for _, replacement in one_call.REPLACEMENTS])
        swap(one_call.REPLACEMENTS)
        _UNDO.append(lambda: swap(back(one_call.REPLACEMENTS), ours))


def _install_copies(level: Level) -> None:
    """Let workers copy blocks by this package's kernels, where vLLM asks for copies as recorded."""
    if why := worker_grant(level).reason:
        logger.info_once("hybrid_blocks: vLLM's own function copies cache blocks: %s", why)
        return
    from hybrid_blocks.vllm.worker import block_copies  # noqa: PLC0415

    block_copies.install()
    _UNDO.append(block_copies.uninstall)


def uninstall() -> None:
    """Put vLLM's classes back. Objects that exist already stay what they are."""
    swap(back(_REPLACEMENTS))
    while _UNDO:
        _UNDO.pop()()


def is_installed() -> bool:
    """Return whether vLLM's names stand for this package's classes."""
    return (
        vllm_block_pool.BlockPool is BlockPool
        and vllm_kv_cache_manager.KVCacheManager is KVCacheManager
    )
