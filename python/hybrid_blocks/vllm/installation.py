"""What takes the place of what."""

from collections.abc import Callable
from typing import Any

from vllm.v1.core import block_pool as vllm_block_pool
from vllm.v1.core import kv_cache_manager as vllm_kv_cache_manager

from hybrid_blocks.vllm import metrics
from hybrid_blocks.vllm.block_pool import BlockPool, VllmBlockPool
from hybrid_blocks.vllm.kv_cache_manager import KVCacheManager, VllmKVCacheManager
from hybrid_blocks.vllm.level import Level, requested
from hybrid_blocks.vllm.native_manager import NativeKVCacheManager
from hybrid_blocks.vllm.request_hasher import (  # type: ignore[attr-defined]
    get_request_block_hasher,
    vllm_get_request_block_hasher,
)
from hybrid_blocks.vllm.swap import swap

_REPLACEMENTS: tuple[tuple[Any, Any], ...] = (
    (VllmBlockPool, BlockPool),
    (VllmKVCacheManager, KVCacheManager),
    (vllm_get_request_block_hasher, get_request_block_hasher),
)

_UNDO: list[Callable[[], None]] = []
"""What takes back what only some levels replace."""


def install() -> None:
    """Put this package's classes in place of vLLM's. A second call changes nothing."""
    KVCacheManager.native = NativeKVCacheManager
    for original, replacement in _REPLACEMENTS:
        swap(original, replacement)
    metrics.register()
    if requested() is Level.NATURAL:
        install_planning()


def install_planning() -> None:
    """Let vLLM plan its memory in slabs."""
    from hybrid_blocks.vllm.natural import planning  # noqa: PLC0415 - for this level only

    planning.install()
    _UNDO.append(planning.uninstall)


def uninstall() -> None:
    """Put vLLM's classes back. Objects that exist already stay what they are."""
    for original, replacement in _REPLACEMENTS:
        swap(replacement, original)
    while _UNDO:
        _UNDO.pop()()


def is_installed() -> bool:
    """Return whether vLLM's names stand for this package's classes."""
    return (
        vllm_block_pool.BlockPool is BlockPool
        and vllm_kv_cache_manager.KVCacheManager is KVCacheManager
    )
