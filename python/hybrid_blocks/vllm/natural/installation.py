"""The swap of vLLM's functions for ours at level ``natural``, beside the managers."""

from hybrid_blocks.vllm.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.natural import chunks, loads, planning, sessions
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager


def install() -> None:
    """Let vLLM plan its memory in slabs, and the manager over slabs serve it."""
    KVCacheManager.natural = NaturalKVCacheManager
    chunks.install()
    sessions.install()
    loads.install()
    planning.install()


def uninstall() -> None:
    """Let vLLM plan, split and pause as it would by itself."""
    chunks.uninstall()
    sessions.uninstall()
    loads.uninstall()
    planning.uninstall()
