"""The reference pool, and vLLM's own pool as its oracle."""

import pytest
from hybrid_blocks.errors import BlockError, OutOfBlocksError
from hybrid_blocks.reference.pool import Pool
from hybrid_blocks.reference.prefix_index import PrefixIndex
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

NUM_BLOCKS = 9


class Pair:
    """Both pools, driven alike."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.pool = Pool(NUM_BLOCKS, self.index)
        self.theirs = BlockPool(NUM_BLOCKS + 1, enable_caching=True, hash_block_size=16)
        self.held: list[int] = []

    def get(self, count: int) -> None:
        if count > self.pool.num_free_blocks:
            with pytest.raises(OutOfBlocksError):
                self.pool.get(count)
            return
        blocks = self.pool.get(count)
        assert blocks == [block.block_id for block in self.theirs.get_new_blocks(count)]
        self.held += blocks

    def cache(self, position: int, digest: bytes) -> None:
        if not self.held:
            return
        block = self.held[position % len(self.held)]
        if block in self.index:
            return
        self.index.insert(digest, block)
        self.theirs._insert_block_hash(
            make_block_hash_with_group_id(BlockHash(digest), 0),
            self.theirs.blocks[block],
            num_tokens=None,
        )

    def touch(self, digest: bytes) -> None:
        block = self.index.find(digest)
        hit = self.theirs.get_cached_block(BlockHash(digest), [0])
        assert block == (hit[0].block_id if hit else None)
        if block is not None and hit is not None:
            self.pool.touch([block])
            self.theirs.touch(hit)
            self.held.append(block)

    def free(self, count: int) -> None:
        blocks, self.held = self.held[:count], self.held[count:]
        self.pool.free(blocks)
        self.theirs.free_blocks([self.theirs.blocks[block] for block in blocks])

    def assert_equal(self) -> None:
        queue = [block.block_id for block in self.theirs.free_block_queue.get_all_free_blocks()]
        assert list(self.pool._queue) == queue
        for block in range(1, NUM_BLOCKS + 1):
            assert self.pool.num_owners(block) == self.theirs.blocks[block].ref_cnt
        self.pool.check_integrity()
        self.index.check_integrity()


digests = st.sampled_from([bytes([n]) * 32 for n in range(4)])
operations = st.one_of(
    st.tuples(st.just("get"), st.integers(0, 5)),
    st.tuples(st.just("cache"), st.integers(0, 20), digests),
    st.tuples(st.just("touch"), digests),
    st.tuples(st.just("free"), st.integers(0, 6)),
)


@settings(deadline=None)
@given(st.lists(operations, max_size=60))
def test_the_pool_decides_as_vllms_pool_does(sequence: list[tuple[str, object]]) -> None:
    pair = Pair()
    for name, *arguments in sequence:
        getattr(pair, name)(*arguments)
        pair.assert_equal()


def test_a_block_freed_twice_is_refused() -> None:
    pool = Pool(3, PrefixIndex())
    blocks = pool.get(1)
    pool.free(blocks)
    with pytest.raises(BlockError, match="freed twice"):
        pool.free(blocks)
