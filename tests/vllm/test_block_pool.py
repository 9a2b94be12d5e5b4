"""Our pool against vLLM's: the same life, and after every call everything to be seen is equal."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.errors import BlockError
from hybrid_blocks.vllm import pool as ours
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm.v1.core.block_pool import BlockPool as VllmBlockPool
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    KVCacheBlock,
    get_block_hash,
    make_block_hash_with_group_id,
)

NUM_BLOCKS = 12
HASH_BLOCK = 4


def request_of(chain: int, num_hashes: int = 8) -> Any:
    """A request as far as a pool looks at one; the hashes of a chain are always the same."""
    hashes = [BlockHash(bytes([chain, n + 1]) * 16) for n in range(num_hashes)]
    absent = ("lora_request", "cache_salt", "session_id", "prompt_embeds")
    return SimpleNamespace(
        **dict.fromkeys(absent),
        request_id=f"chain {chain}",
        block_hashes=hashes,
        all_token_ids=list(range(num_hashes * HASH_BLOCK)),
        mm_features=[],
        num_tokens=num_hashes * HASH_BLOCK,
    )


class PoolsAgree(RuleBasedStateMachine):
    """Drives both pools; blocks are named by id."""

    def __init__(self) -> None:
        super().__init__()
        self.pools: list[VllmBlockPool] = []
        self.held: list[int] = []
        self.reused: list[list[int]] = [[], []]

    @initialize(events=st.booleans(), metrics=st.booleans())
    def start(self, events: bool, metrics: bool) -> None:
        self.pools = [
            pool(
                num_gpu_blocks=NUM_BLOCKS,
                enable_caching=True,
                hash_block_size=HASH_BLOCK,
                enable_kv_cache_events=events,
                metrics_collector=KVCacheMetricsCollector(1.0) if metrics else None,
            )
            for pool in (VllmBlockPool, ours.BlockPool)
        ]

    def both(self, call: Callable[[VllmBlockPool], Any]) -> Any:
        """Call both pools; they return the same or raise the same."""
        outcomes = []
        for pool in self.pools:
            try:
                outcomes.append(call(pool))
            except (AssertionError, ValueError) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
        return outcomes[1]

    @rule(num_blocks=st.integers(0, NUM_BLOCKS))
    def get_new_blocks(self, num_blocks: int) -> None:
        ids = self.both(lambda pool: [b.block_id for b in pool.get_new_blocks(num_blocks)])
        if isinstance(ids, list):
            self.held += ids

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free_blocks(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True))
        with_null = [0, *ids]
        self.both(lambda pool: pool.free_blocks(pool.blocks[i] for i in with_null))
        for block_id in ids:
            self.held.remove(block_id)

    @rule(chain=st.integers(0, 3), length=st.integers(1, 4), group=st.integers(0, 1))
    def hit(self, chain: int, length: int, group: int) -> None:
        hashes = request_of(chain).block_hashes[:length]

        def adopt(pool: VllmBlockPool) -> list[int] | None:
            found = [pool.get_cached_block(block_hash, [group]) for block_hash in hashes]
            blocks = [blocks[0] for blocks in found if blocks]
            pool.touch(blocks)
            return [block.block_id for block in blocks]

        self.held += self.both(adopt)

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        chain=st.integers(0, 3),
        start=st.integers(0, 2),
        scale=st.sampled_from([1, 2]),
        group=st.integers(0, 1),
    )
    def cache_full_blocks(
        self, data: st.DataObject, chain: int, start: int, scale: int, group: int
    ) -> None:
        new = data.draw(st.lists(st.sampled_from(sorted(set(self.held))), max_size=2, unique=True))
        mask = data.draw(st.none() | st.lists(st.booleans(), min_size=len(new), max_size=len(new)))
        ids = [0] * start + new

        # A block that is cached already may only be promoted; vLLM asserts it half way through.
        for position, block_id in enumerate(new, start):
            block = self.pools[0].blocks[block_id]
            known = block.block_hash_num_tokens
            if known is not None and known >= (position + 1) * scale * HASH_BLOCK:
                return
        self.both(
            lambda pool: pool.cache_full_blocks(
                request_of(chain),
                [pool.blocks[i] for i in ids],
                start,
                len(ids),
                scale * HASH_BLOCK,
                group,
                mask,
            )
        )

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        chain=st.integers(0, 3),
        num_hashes=st.integers(1, 8),
        group=st.integers(0, 1),
        replace=st.booleans(),
    )
    def cache_partial_block(
        self, data: st.DataObject, chain: int, num_hashes: int, group: int, replace: bool
    ) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.held)))
        self.both(
            lambda pool: pool.cache_partial_block(
                request_of(chain),
                pool.blocks[block_id],
                num_hashes * HASH_BLOCK,
                group,
                8 * HASH_BLOCK,
                replace_existing_hashes=replace,
            )
        )

    @rule(block_ids=st.sets(st.integers(1, NUM_BLOCKS - 1), max_size=1))
    def evict_blocks(self, block_ids: set[int]) -> None:
        self.both(lambda pool: pool.evict_blocks(block_ids))

    @precondition(lambda self: len(set(self.held)) > 1)
    @rule(data=st.data())
    def move_block_hashes(self, data: st.DataObject) -> None:
        source, target = data.draw(
            st.lists(st.sampled_from(sorted(set(self.held))), min_size=2, max_size=2, unique=True)
        )
        if not self.pools[0].cached_block_hashes_by_block.get(source):
            self.both(lambda pool: pool.move_block_hashes(pool.blocks[source], pool.blocks[target]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unpin_blocks(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.held)))
        for pool, reused in zip(self.pools, self.reused, strict=True):
            pool.unpin_blocks([pool.blocks[block_id]], partial(note, reused))
        self.held.remove(block_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def take_one_more_reference(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.held)))
        for pool in self.pools:
            pool.blocks[block_id].ref_cnt += 1
        self.held.append(block_id)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.both(lambda pool: pool.reset_prefix_cache())

    @precondition(lambda self: self.held)
    @rule()
    def free_all(self) -> None:
        for block_id in self.held:
            self.both(partial(free_one, block_id))
        self.held.clear()

    @invariant()
    def everything_to_be_seen_is_equal(self) -> None:
        if not self.pools:
            return
        assert seen(self.pools[0]) == seen(self.pools[1])
        assert self.reused[0] == self.reused[1]
        self.pools[1]._blocks.check_integrity()  # type: ignore[attr-defined]


def note(reused: list[int], block: KVCacheBlock) -> None:
    reused.append(block.block_id)


def free_one(block_id: int, pool: VllmBlockPool) -> None:
    pool.free_blocks([pool.blocks[block_id]])


def seen(pool: VllmBlockPool) -> dict[str, Any]:
    """Everything that a manager, a connector or a test can see of a pool."""
    queue = pool.free_block_queue
    walked = []
    block = queue.fake_free_list_tail.prev_free_block
    while block is not queue.fake_free_list_head:
        assert block is not None
        walked.append(block.block_id)
        block = block.prev_free_block
    hashes = [it for chain in range(4) for it in request_of(chain).block_hashes]
    keys = {make_block_hash_with_group_id(it, group) for it in hashes for group in range(2)}
    hash_map = pool.cached_block_hash_to_block
    collector = pool.metrics_collector
    return {
        "free": [block.block_id for block in queue.get_all_free_blocks()],
        "free backwards": walked[::-1],
        "after none": [block.block_id for block in queue.iter_blocks_after(None)],
        "num free": (queue.num_free_blocks, pool.get_num_free_blocks(), pool.get_usage()),
        "ref counts": [block.ref_cnt for block in pool.blocks],
        "hashes": [(b.block_hash, b.block_hash_num_tokens) for b in pool.blocks],
        "queued": [
            (b.prev_free_block is not None, b.next_free_block is not None) for b in pool.blocks
        ],
        "writable": [pool.is_block_writable(block) for block in pool.blocks],
        "further": {i: set(k) for i, k in pool.cached_block_hashes_by_block.items() if k},
        "found": {key: getattr(hash_map.get_one_block(key), "block_id", None) for key in keys},
        "held": [(key, i) for key in keys for i in range(NUM_BLOCKS) if hash_map.contain(key, i)],
        "num keys": len(hash_map),
        "events": sorted(map(repr, pool.kv_event_queue)),
        "event kinds": [type(event) for event in pool.kv_event_queue],
        "measured": sorted(collector.block_metrics) if collector else None,
    }


TestPoolsAgree = pytest.mark.filterwarnings("ignore")(PoolsAgree.TestCase)
TestPoolsAgree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture
def pool() -> ours.BlockPool:
    return ours.BlockPool(NUM_BLOCKS, enable_caching=True, hash_block_size=HASH_BLOCK)


def key_of(name: bytes, group: int = 0) -> BlockHashWithGroupId:
    return make_block_hash_with_group_id(BlockHash(name), group)


def test_a_block_is_always_the_same_object(pool: ours.BlockPool) -> None:
    (block,) = pool.get_new_blocks(1)
    assert block is pool.blocks[1] is pool.blocks[-11] is pool.blocks[:2][1]
    assert block.pool is pool
    assert pool.null_block is pool.blocks[0]
    assert [b.block_id for b in pool.blocks] == list(range(NUM_BLOCKS))
    with pytest.raises(IndexError, match="block 12 of 12"):
        pool.blocks[NUM_BLOCKS]


def test_a_block_is_an_instance_of_vllms_class_without_room_for_more(pool: ours.BlockPool) -> None:
    block = pool.blocks[3]
    assert isinstance(block, KVCacheBlock)
    with pytest.raises(AttributeError):
        block.unexpected_field = 1  # type: ignore[attr-defined]
    assert KVCacheBlock(block_id=3) != pool.blocks[3]
    assert KVCacheBlock(block_id=3) is not pool.blocks[3]


def test_outside_references_come_and_go_save_the_first_and_the_last(pool: ours.BlockPool) -> None:
    (block,) = pool.get_new_blocks(1)
    block.ref_cnt += 2
    block.ref_cnt -= 1
    assert block.ref_cnt == 2
    with pytest.raises(ValueError, match="only the pool's touch and free_blocks"):
        block.ref_cnt = 0
    with pytest.raises(ValueError, match="cannot go from 0 to 1"):
        pool.blocks[5].ref_cnt += 1


def test_a_block_freed_twice_is_named_and_nothing_changes(pool: ours.BlockPool) -> None:
    first, second = pool.get_new_blocks(2)
    pool.free_blocks([second])
    with pytest.raises(BlockError, match="block 2 has no owner"):
        pool.free_blocks([first, second])
    assert first.ref_cnt == 1


def test_blocks_of_several_pools_go_back_to_their_own(pool: ours.BlockPool) -> None:
    other = ours.BlockPool(4, enable_caching=True, hash_block_size=HASH_BLOCK)
    pool.free_blocks(pool.get_new_blocks(2) + other.get_new_blocks(3))
    assert (pool.get_num_free_blocks(), other.get_num_free_blocks()) == (NUM_BLOCKS - 1, 3)


def test_a_block_made_by_hand_counts_its_owners_itself(pool: ours.BlockPool) -> None:
    made, owned = KVCacheBlock(3, ref_cnt=2), KVCacheBlock(4, ref_cnt=2, pool=pool)
    pool.free_blocks([made, owned, KVCacheBlock(0, is_null=True)])
    assert (made.ref_cnt, owned.ref_cnt) == (1, 1)
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def test_a_block_of_another_pool_is_not_touched_by_mistake(pool: ours.BlockPool) -> None:
    other = ours.BlockPool(4, enable_caching=True, hash_block_size=HASH_BLOCK)
    with pytest.raises(TypeError, match="not a block of this pool"):
        pool.touch(other.get_new_blocks(1))


@pytest.mark.parametrize("length", [1, 15, 16, 32])
def test_hashes_of_all_lengths_come_back_as_they_were(pool: ours.BlockPool, length: int) -> None:
    name = bytes(range(1, length + 1))
    (block,) = pool.get_new_blocks(1)
    pool._insert_block_hash(key_of(name, 7), block, 4)
    assert block.block_hash == key_of(name, 7)
    assert get_block_hash(block.block_hash) == name
    assert pool.get_cached_block(BlockHash(name), [7]) == [block]
    assert pool.get_cached_block(BlockHash(name), [7, 8]) is None


def test_a_pool_and_its_blocks_are_collected_together() -> None:
    pool = ours.BlockPool(NUM_BLOCKS, enable_caching=True, hash_block_size=HASH_BLOCK)
    pool.free_blocks(pool.get_new_blocks(3))
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None


def test_a_million_blocks_take_less_than_64_bytes_each_and_no_python_objects() -> None:
    gc.collect()
    before = len(gc.get_objects())
    pool = ours.BlockPool(1_000_000, enable_caching=True, hash_block_size=HASH_BLOCK)
    assert pool._blocks.memory_bytes() < 64 * 1_000_000
    assert len(gc.get_objects()) - before < 1_000
