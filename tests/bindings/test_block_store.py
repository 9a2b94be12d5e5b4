"""A block store through arrays: what goes in comes out. Its decisions are proven in Rust."""

from typing import Any

import numpy as np
import pytest
from hybrid_blocks import BlockStore


def ids(*blocks: int) -> Any:
    return np.array(blocks, dtype=np.int32)


def digests(*numbers: int) -> Any:
    """Digests that differ in their last byte only, shape ``[len(numbers), 32]``."""
    array = np.zeros((len(numbers), 32), dtype=np.uint8)
    array[:, 31] = numbers
    return array


def digest(number: int) -> bytes:
    return bytes(digests(number))


def test_blocks_go_out_come_back_and_are_evicted_in_order() -> None:
    store = BlockStore(6)
    assert store.get_new(3).tolist() == [1, 2, 3]
    for block in (1, 2, 3):
        assert store.insert_key(block, digest(block))
    store.free(ids(3, 2, 1))
    assert store.free_order().tolist() == [4, 5, 3, 2, 1]
    assert (store.num_free(), store.num_keys()) == (5, 3)
    assert store.get_new(4).tolist() == [4, 5, 3, 2]
    assert store.take_evicted() == [(digest(3), 0), (digest(2), 0)]
    assert store.take_evicted() == []
    assert store.ref_counts().tolist()[1:] == [0, 1, 1, 1, 1]


def test_a_prefix_is_matched_up_to_the_first_block_that_is_missing() -> None:
    store = BlockStore(6)
    store.get_new(3)
    for block, number in ((1, 10), (2, 11), (3, 13)):
        store.insert_key(block, digest(number), group=2)
    assert store.match_prefix(digests(10, 11, 12, 13), group=2).tolist() == [1, 2]
    assert store.match_prefix(digests(10), group=1).tolist() == []
    assert store.match_prefix(digests(), group=2).tolist() == []
    assert (store.get(digest(13), group=2), store.get(digest(13))) == (3, None)


def test_a_key_is_entered_once_and_its_oldest_block_is_found() -> None:
    store = BlockStore(6)
    store.get_new(2)
    assert store.insert_key(2, digest(7), num_tokens=16)
    assert not store.insert_key(2, digest(7), num_tokens=16)
    assert store.insert_key(1, digest(7))
    assert store.get(digest(7)) == 2
    assert len(store.keys(2)) == 1
    store.evict(ids(2))
    assert store.get(digest(7)) == 1


def test_a_touched_block_has_one_more_owner_and_outlives_the_first() -> None:
    store = BlockStore(4)
    (block,) = store.get_new(1).tolist()
    store.touch(ids(block))
    store.free(ids(block))
    assert store.ref_counts()[block] == 1
    store.free(ids(block))
    store.reset()
    assert (store.num_keys(), store.num_free()) == (0, 3)


@pytest.mark.parametrize("digest_size", [16, 32])
def test_digests_of_both_sizes_come_back_as_they_were(digest_size: int) -> None:
    store = BlockStore(4, digest_size=digest_size)
    store.get_new(1)
    key = bytes(range(1, digest_size + 1))
    store.insert_key(1, key)
    store.free(ids(1))
    store.get_new(3)
    assert store.take_evicted() == [(key, 0)]
