"""Blocks in and out of a pool, and a million of them made, against vLLM's own `BlockPool`."""

import tracemalloc

import numpy as np
from _rows import Row, against, seconds, show
from hybrid_blocks import BlockStore
from vllm.v1.core.block_pool import BlockPool

NUM_BLOCKS = 100_000
BATCH = 256
MILLION = 1_000_000


def check(pool: BlockPool, store: BlockStore) -> None:
    """Both hand out the same ids, whatever was freed before."""
    rng = np.random.default_rng(0)
    held: list[np.ndarray] = []
    for _ in range(200):
        ours = store.get_new(BATCH)
        theirs = [block.block_id for block in pool.get_new_blocks(BATCH)]
        if ours.tolist() != theirs:
            raise AssertionError(f"vLLM hands out {theirs}, we {ours}")
        held.append(ours)
        back = rng.permutation(held.pop(rng.integers(len(held)))).astype(np.int32)
        store.free(back)
        pool.free_blocks([pool.blocks[block] for block in back])
    for blocks in held:
        store.free(blocks)
        pool.free_blocks([pool.blocks[block] for block in blocks])


def get_and_free() -> list[Row]:
    pool, store = BlockPool(NUM_BLOCKS, True, 16), BlockStore(NUM_BLOCKS)
    check(pool, store)
    baseline, ours, wide = seconds(
        lambda: pool.free_blocks(pool.get_new_blocks(BATCH)),
        lambda: store.free(store.get_new(BATCH)),
        lambda: store.free(store.get_new(16 * BATCH)),
    )
    name, per_block = "get + free of 256 blocks, Python", 1e9 / BATCH
    return [
        against(name, "ns/block", ours * per_block, baseline * per_block, at_least=20, at_most=25),
        against(
            "get + free of 4,096 blocks, Python",
            "ns/block",
            wide * per_block / 16,
            baseline * per_block,
        ),
    ]


def construction() -> list[Row]:
    baseline, ours = seconds(
        lambda: BlockPool(MILLION, True, 16), lambda: BlockStore(MILLION), repeat=3
    )
    tracemalloc.start()
    pool = BlockPool(MILLION, True, 16)
    peer_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del pool
    size = BlockStore(MILLION).memory_bytes
    return [
        against("a million blocks made", "ms", ours * 1e3, baseline * 1e3, at_most=50),
        Row(
            name="memory of a block",
            unit="bytes",
            value=size / MILLION,
            baseline=peer_bytes / MILLION,
            ratio=peer_bytes / size,
            target="≤ 64",
            ok=size <= 64 * MILLION,
        ),
    ]


def run() -> list[Row]:
    return get_and_free() + construction()


if __name__ == "__main__":
    show("block pool", run())
