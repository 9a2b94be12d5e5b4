"""`BlockStore` and vLLM's own `BlockPool` decide alike: ids, hits, evictions, events, order."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hybrid_blocks import BlockStore
from hybrid_blocks.errors import BlockError, OutOfBlocksError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
)

BLOCK_SIZE = 16
numbers = st.integers(0, 1000)
groups = st.integers(0, 2)
hashes = st.integers(0, 5)


def digest(number: int) -> bytes:
    """Digests that differ in their last byte only."""
    return bytes(31) + bytes([number])


def ids(blocks: list[int]) -> Any:
    return np.array(blocks, dtype=np.int32)


class Pools(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 20))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, True, BLOCK_SIZE, enable_kv_cache_events=True)
        self.store = BlockStore(num_blocks)
        self.num_blocks = num_blocks
        self.events: list[tuple[Any, ...]] = []

    @property
    def owned(self) -> list[int]:
        """Every block once for each of its owners."""
        counts = self.store.ref_counts().tolist()
        return [block for block, count in enumerate(counts) for _ in range(count)]

    def with_content(self, number: int) -> int | None:
        blocks = [b for b in range(1, self.num_blocks) if b in self.owned or self.store.keys(b)]
        return blocks[number % len(blocks)] if blocks else None

    def removed(self) -> None:
        self.events += [("removed", key, group) for key, group in self.store.take_evicted()]

    @rule(count=st.integers(0, 8))
    def get_new(self, count: int) -> None:
        if count > self.pool.get_num_free_blocks():
            before = self.store.free_order().tolist()
            with pytest.raises(ValueError, match="Cannot get"):
                self.pool.get_new_blocks(count)
            with pytest.raises(OutOfBlocksError, match=f"{count} blocks are needed"):
                self.store.get_new(count)
            assert self.store.free_order().tolist() == before
            return
        expected = [block.block_id for block in self.pool.get_new_blocks(count)]
        assert self.store.get_new(count).tolist() == expected
        self.removed()

    @precondition(lambda self: self.num_blocks > 1)
    @rule(chosen=st.lists(numbers, max_size=4))
    def touch(self, chosen: list[int]) -> None:
        blocks = [1 + number % (self.num_blocks - 1) for number in chosen]
        self.pool.touch([self.pool.blocks[block] for block in blocks])
        self.store.touch(ids(blocks))

    @rule(data=st.data(), count=st.integers(0, 6))
    def free(self, data: st.DataObject, count: int) -> None:
        blocks = data.draw(st.permutations(self.owned))[:count]
        self.pool.free_blocks([self.pool.blocks[block] for block in blocks])
        self.store.free(ids(blocks))

    @rule(data=st.data())
    def free_once_too_often(self, data: st.DataObject) -> None:
        blocks = data.draw(st.permutations(self.owned))
        if blocks:
            before = self.store.free_order().tolist(), self.store.ref_counts().tolist()
            with pytest.raises(BlockError, match=f"block {blocks[0]} has no owner"):
                self.store.free(ids([*blocks, blocks[0]]))
            assert before == (self.store.free_order().tolist(), self.store.ref_counts().tolist())

    @rule(number=numbers, key=hashes, group=groups)
    def insert(self, number: int, key: int, group: int) -> None:
        block = self.with_content(number)
        # vLLM keeps a block's further keys in a set: with more than one their order is not defined.
        if block is None or len(self.store.keys(block)) > 1:
            return
        view = self.pool.blocks[block]
        spelled = make_block_hash_with_group_id(BlockHash(digest(key)), group)
        new = not self.pool.cached_block_hash_to_block.contain(spelled, block)
        self.pool._insert_block_hash(spelled, view, num_tokens=BLOCK_SIZE)
        assert self.store.insert_key(block, digest(key), group=group) == new

    @rule(data=st.data(), first=st.integers(0, 3), group=groups)
    def cache_full_blocks(self, data: st.DataObject, first: int, group: int) -> None:
        owned = sorted({block for block in self.owned if not self.store.keys(block)})
        blocks = data.draw(st.permutations(owned))[:3]
        if not blocks:
            return
        digests = [digest(number) for number in range(first + len(blocks))]
        request = SimpleNamespace(
            block_hashes=digests,
            all_token_ids=list(range(len(digests) * BLOCK_SIZE)),
            mm_features=[],
            lora_request=None,
            cache_salt=None,
            prompt_embeds=None,
            session_id=None,
        )
        views = [self.pool.null_block] * first + [self.pool.blocks[block] for block in blocks]
        self.pool.cache_full_blocks(request, views, first, len(views), BLOCK_SIZE, group)  # type: ignore[arg-type]
        for block, key in zip(blocks, digests[first:], strict=True):
            assert self.store.insert_key(block, key, group=group, num_tokens=BLOCK_SIZE)
        parent = digests[first - 1] if first else None
        self.events.append(("stored", tuple(digests[first:]), parent, group))

    @rule(key=hashes, group=groups)
    def get(self, key: int, group: int) -> None:
        found = self.pool.get_cached_block(BlockHash(digest(key)), [group])
        assert self.store.get(digest(key), group=group) == (found[0].block_id if found else None)

    @rule(keys=st.lists(hashes, max_size=4), group=groups)
    def match_prefix(self, keys: list[int], group: int) -> None:
        expected = []
        for key in keys:
            found = self.pool.get_cached_block(BlockHash(digest(key)), [group])
            if found is None:
                break
            expected.append(found[0].block_id)
        array = np.frombuffer(b"".join(map(digest, keys)), dtype=np.uint8).reshape(-1, 32)
        assert self.store.match_prefix(array, group=group).tolist() == expected

    @precondition(lambda self: self.num_blocks > 1)
    @rule(chosen=st.lists(numbers, max_size=4))
    def evict(self, chosen: list[int]) -> None:
        blocks = [1 + number % (self.num_blocks - 1) for number in chosen]
        self.pool.evict_blocks(blocks)  # type: ignore[arg-type]
        self.store.evict(ids(blocks))
        self.removed()

    @rule()
    def reset(self) -> None:
        if self.pool.reset_prefix_cache():
            self.store.reset()
            self.events.append(("cleared",))
        else:
            with pytest.raises(BlockError, match="still have owners"):
                self.store.reset()

    @invariant()
    def the_same_in_the_same_order(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.store.check_integrity()
        queue = self.pool.free_block_queue.get_all_free_blocks()
        assert self.store.free_order().tolist() == [block.block_id for block in queue]
        assert self.store.num_free() == self.pool.get_num_free_blocks()
        assert self.store.num_keys() == len(self.pool.cached_block_hash_to_block)
        counts = [block.ref_cnt for block in self.pool.blocks]
        assert self.store.ref_counts().tolist()[1:] == counts[1:]
        assert [spell(event) for event in self.pool.take_events()] == [
            tuple(external(item) for item in event) for event in self.events
        ]
        self.events.clear()


def external(item: Any) -> Any:
    """Digests as vLLM's events spell them."""
    if isinstance(item, tuple):
        return tuple(map(external, item))
    return maybe_convert_block_hash(BlockHash(item)) if isinstance(item, bytes) else item


def spell(event: Any) -> tuple[Any, ...]:
    match event:
        case BlockRemoved():
            return ("removed", event.block_hashes[0], event.group_idx)
        case BlockStored():
            hashes = tuple(event.block_hashes)
            return ("stored", hashes, event.parent_block_hash, event.group_idx)
        case AllBlocksCleared():
            return ("cleared",)
    raise AssertionError(f"an event of a kind that is not known: {event}")


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
