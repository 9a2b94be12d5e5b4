"""Residency metrics of what the core did, for vLLM's own collector."""

from collections.abc import Iterable

from vllm.v1.core.block_pool import BlockPool


def note(pool: BlockPool, residency: Iterable[tuple[str, int]]) -> None:
    """Tell the pool's collector what became of blocks, by id and in order."""
    collector = pool.metrics_collector
    if collector is None:
        return
    tell = {
        "allocated": collector.on_block_allocated,
        "accessed": collector.on_block_accessed,
        "evicted": collector.on_block_evicted,
    }
    for what, block_id in residency:
        tell[what](pool.blocks[block_id])
