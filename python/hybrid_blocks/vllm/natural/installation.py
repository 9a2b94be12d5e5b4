"""The swap of vLLM's functions for ours at level ``natural``, beside the managers."""

from collections.abc import Callable

from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.natural import chunks, loads, planning, sessions, shown
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager
from hybrid_blocks.vllm.scheduler.hooks import replace, when_made

_UNDO: list[Callable[[], None]] = []


def install() -> None:
    """Let vLLM plan its memory in slabs, and the manager over slabs serve it."""
    KVCacheManager.natural = NaturalKVCacheManager
    for part in (chunks, sessions, loads):
        _UNDO.extend(replace(*replaced) for replaced in part.REPLACED)
    _UNDO.extend(when_made(hook) for hook in (loads.count_in_slabs, shown.count_tokens))
    planning.install()


def uninstall() -> None:
    """Let vLLM plan, split and pause as it would by itself."""
    while _UNDO:
        _UNDO.pop()()
    planning.uninstall()
