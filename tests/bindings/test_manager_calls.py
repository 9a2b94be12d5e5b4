"""A manager of one group that keeps every token, call by call, as a scheduler makes them."""

from typing import Any

import numpy as np
import pytest
from hybrid_blocks import BlockManager, GroupSpec, HybridBlocksError, block_hasher

BLOCK_SIZE = 4
NUM_BLOCKS = 12


def made() -> BlockManager:
    hasher = block_hasher("xxhash", BLOCK_SIZE)
    return BlockManager([GroupSpec("full", BLOCK_SIZE)], hasher, num_blocks=NUM_BLOCKS + 1)


def ids(*handles: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(handles, dtype=np.int64)


def counts(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def compute(manager: BlockManager, handle: int, num_tokens: int) -> None:
    assert manager.allocate(ids(handle), counts(num_tokens)) == 1
    manager.advance(ids(handle), counts(num_tokens))


def test_a_match_sees_what_was_cached_since_the_last_one() -> None:
    manager = made()
    prompt = np.arange(10, dtype=np.int32)
    first, second = manager.add_request("a", prompt), manager.add_request("b", prompt)
    assert manager.match_prefix(second) == 0
    manager.match_prefix(first)
    compute(manager, first, 10)
    assert manager.match_prefix(second) == 8


def test_a_match_leaves_at_least_one_token_to_compute() -> None:
    manager = made()
    prompt = np.arange(8, dtype=np.int32)
    compute(manager, manager.add_request("a", prompt), 8)
    assert manager.match_prefix(manager.add_request("b", prompt)) == 4


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    manager = made()
    handle = manager.add_request("a", np.arange(10, dtype=np.int32))
    compute(manager, handle, 10)
    manager.append_tokens(ids(handle), counts(77))
    manager.preempt(ids(handle))
    assert manager.num_free_blocks == NUM_BLOCKS
    assert manager.match_prefix(handle) == 8
    compute(manager, handle, 3)


def test_a_finished_prefix_is_evicted_tail_first() -> None:
    manager = made()
    handle = manager.add_request("a", np.arange(16, dtype=np.int32))
    compute(manager, handle, 16)
    manager.free(ids(handle))
    other = manager.add_request("b", np.arange(100, 140, dtype=np.int32))
    compute(manager, other, 40)
    again = manager.add_request("c", np.arange(16, dtype=np.int32))
    assert manager.match_prefix(again) == 8


def test_allocation_stops_at_the_first_request_that_does_not_fit() -> None:
    manager = made()
    handles = [manager.add_request(str(i), np.arange(i, i + 20, dtype=np.int32)) for i in range(3)]
    assert manager.allocate(ids(*handles), counts(20, 20, 20)) == 2
    assert manager.num_free_blocks == 2
    assert len(manager.block_ids(handles[2])) == 0


def test_wrong_calls_are_refused_and_change_nothing() -> None:
    manager = made()
    prompt = np.arange(6, dtype=np.int32)
    handle = manager.add_request("a", prompt)
    wrong: list[Any] = [
        lambda: manager.add_request("a", prompt),
        lambda: manager.add_request("b", np.arange(4 * NUM_BLOCKS + 1, dtype=np.int32)),
        lambda: manager.match_prefix(handle + 1),
        lambda: manager.allocate(ids(handle, handle), counts(1, 1)),
        lambda: manager.allocate(ids(handle), counts(1, 1)),
        lambda: manager.allocate(ids(handle), counts(-1)),
        lambda: manager.advance(ids(handle), counts(1)),
        lambda: manager.free(ids(handle, 99)),
    ]
    for call in wrong:
        with pytest.raises(HybridBlocksError):
            call()
    assert manager.num_free_blocks == NUM_BLOCKS
    compute(manager, handle, 6)
    with pytest.raises(HybridBlocksError):
        manager.advance(ids(handle), counts(1))
    manager.check_integrity()
    manager.free(ids(handle))
    with pytest.raises(HybridBlocksError):
        manager.free(ids(handle))
