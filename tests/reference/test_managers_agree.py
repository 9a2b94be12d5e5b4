"""The Rust manager and the plain Python one, side by side."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hybrid_blocks import BlockManager, GroupSpec, HybridBlocksError, block_hasher
from hybrid_blocks.reference import ReferenceManager
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

BLOCK_SIZE = 4
NUM_BLOCKS = 12

AnyManager = BlockManager | ReferenceManager


def rust() -> BlockManager:
    hasher = block_hasher("xxhash", BLOCK_SIZE)
    return BlockManager([GroupSpec("full", BLOCK_SIZE)], hasher, num_blocks=NUM_BLOCKS + 1)


def python() -> ReferenceManager:
    return ReferenceManager(NUM_BLOCKS, BLOCK_SIZE)


def ids(*handles: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(handles, dtype=np.int64)


def counts(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def compute(manager: AnyManager, handle: int, num_tokens: int) -> None:
    assert manager.allocate(ids(handle), counts(num_tokens)) == 1
    manager.advance(ids(handle), counts(num_tokens))


both = pytest.mark.parametrize("make", [rust, python])
Make = Callable[[], AnyManager]


@both
def test_a_match_sees_what_was_cached_since_the_last_one(make: Make) -> None:
    manager = make()
    prompt = np.arange(10, dtype=np.int32)
    first, second = manager.add_request("a", prompt), manager.add_request("b", prompt)
    assert manager.match_prefix(second) == 0
    manager.match_prefix(first)
    compute(manager, first, 10)
    assert manager.match_prefix(second) == 8


@both
def test_a_match_leaves_at_least_one_token_to_compute(make: Make) -> None:
    manager = make()
    prompt = np.arange(8, dtype=np.int32)
    compute(manager, manager.add_request("a", prompt), 8)
    assert manager.match_prefix(manager.add_request("b", prompt)) == 4


@both
def test_a_preempted_request_finds_its_own_blocks_again(make: Make) -> None:
    manager = make()
    handle = manager.add_request("a", np.arange(10, dtype=np.int32))
    compute(manager, handle, 10)
    manager.append_tokens(ids(handle), counts(77))
    manager.preempt(ids(handle))
    assert manager.num_free_blocks == NUM_BLOCKS
    assert manager.match_prefix(handle) == 8
    compute(manager, handle, 3)


@both
def test_a_finished_prefix_is_evicted_tail_first(make: Make) -> None:
    manager = make()
    handle = manager.add_request("a", np.arange(16, dtype=np.int32))
    compute(manager, handle, 16)
    manager.free(ids(handle))
    other = manager.add_request("b", np.arange(100, 140, dtype=np.int32))
    compute(manager, other, 40)
    again = manager.add_request("c", np.arange(16, dtype=np.int32))
    assert manager.match_prefix(again) == 8


@both
def test_allocation_stops_at_the_first_request_that_does_not_fit(make: Make) -> None:
    manager = make()
    handles = [manager.add_request(str(i), np.arange(i, i + 20, dtype=np.int32)) for i in range(3)]
    assert manager.allocate(ids(*handles), counts(20, 20, 20)) == 2
    assert manager.num_free_blocks == 2
    assert len(manager.block_ids(handles[2])) == 0


@both
def test_wrong_calls_are_refused_and_change_nothing(make: Make) -> None:
    manager = make()
    prompt = np.arange(6, dtype=np.int32)
    handle = manager.add_request("a", prompt)
    wrong: list[Callable[[], object]] = [
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


which = st.integers(0, 1000)


class Managers(RuleBasedStateMachine):
    """Any order of calls, in batches too, gives equal answers and equal block tables."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.reference = ReferenceManager(num_blocks, BLOCK_SIZE)
        self.manager = BlockManager(
            [GroupSpec("full", BLOCK_SIZE)],
            block_hasher("xxhash", BLOCK_SIZE),
            num_blocks=num_blocks + 1,
        )
        self.handles: list[tuple[int, int]] = []
        self.number = 0

    def both(self, call: Callable[[Any, int], Any]) -> Any:
        """Run a call on both; they return the same or raise the same exception."""
        results: list[Any] = []
        for side, manager in enumerate((self.manager, self.reference)):
            try:
                results.append(call(manager, side))
            except HybridBlocksError as error:
                results.append(type(error))
        assert results[0] == results[1]
        return results[0]

    def picked(self, numbers: list[int], side: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        handles = [self.handles[n % len(self.handles)][side] for n in numbers]
        return np.array(handles, dtype=np.int64)

    @rule(prefix=st.integers(0, 2), shared=st.integers(0, 16), own=st.integers(0, 6))
    def add_request(self, prefix: int, shared: int, own: int) -> None:
        tokens = np.array([prefix * 100] * shared + [self.number % 3] * own, dtype=np.int32)
        name, self.number = f"request {self.number}", self.number + 1
        handles: list[int] = []
        added = self.both(lambda m, _: handles.append(m.add_request(name, tokens)))
        if added is None:
            self.handles.append((handles[0], handles[1]))

    @precondition(lambda self: self.handles)
    @rule(numbers=st.lists(which, min_size=1, max_size=4), token=st.integers(0, 2))
    def append_tokens(self, numbers: list[int], token: int) -> None:
        tokens = np.full(len(numbers), token, dtype=np.int32)
        self.both(lambda m, side: m.append_tokens(self.picked(numbers, side), tokens))

    @precondition(lambda self: self.handles)
    @rule(number=which)
    def match_prefix(self, number: int) -> None:
        self.both(lambda m, side: m.match_prefix(int(self.picked([number], side)[0])))

    @precondition(lambda self: self.handles)
    @rule(batch=st.lists(st.tuples(which, st.integers(0, 9)), min_size=1, max_size=4))
    def allocate(self, batch: list[tuple[int, int]]) -> None:
        numbers, counts = [n for n, _ in batch], np.array([c for _, c in batch], dtype=np.int32)
        self.both(lambda m, side: m.allocate(self.picked(numbers, side), counts))

    @precondition(lambda self: self.handles)
    @rule(batch=st.lists(st.tuples(which, st.integers(0, 9)), min_size=1, max_size=4))
    def advance(self, batch: list[tuple[int, int]]) -> None:
        numbers, counts = [n for n, _ in batch], np.array([c for _, c in batch], dtype=np.int32)
        self.both(lambda m, side: m.advance(self.picked(numbers, side), counts))

    @precondition(lambda self: self.handles)
    @rule(number=which, count=st.integers(1, 9))
    def allocate_and_compute(self, number: int, count: int) -> None:
        """What a scheduler does all day."""
        counts = np.array([count], dtype=np.int32)
        self.match_prefix(number)
        if self.both(lambda m, side: m.allocate(self.picked([number], side), counts)) == 1:
            self.both(lambda m, side: m.advance(self.picked([number], side), counts))

    @precondition(lambda self: self.handles)
    @rule(numbers=st.lists(which, min_size=1, max_size=3))
    def preempt(self, numbers: list[int]) -> None:
        self.both(lambda m, side: m.preempt(self.picked(numbers, side)))

    @precondition(lambda self: self.handles)
    @rule(numbers=st.lists(which, min_size=1, max_size=3))
    def free(self, numbers: list[int]) -> None:
        gone = {n % len(self.handles) for n in numbers}
        if self.both(lambda m, side: m.free(self.picked(numbers, side))) is None:
            self.handles = [h for n, h in enumerate(self.handles) if n not in gone]

    @invariant()
    def the_same_blocks_in_the_same_tables(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        self.reference.check_integrity()
        assert self.manager.num_free_blocks == self.reference.num_free_blocks
        assert self.manager.num_requests == len(self.handles)
        for rust, python in self.handles:
            assert self.manager.block_ids(rust).tolist() == self.reference.block_ids(python)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.free(np.array([rust for rust, _ in self.handles], dtype=np.int64))
            assert self.manager.num_free_blocks == self.manager.num_blocks
            self.manager.reset()
            self.manager.check_integrity()


TestManagers = Managers.TestCase
TestManagers.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_the_comparison_notices_a_manager_that_decides_differently() -> None:
    machine = Managers()
    machine.start(num_blocks=4)
    machine.add_request(0, 8, 0)
    machine.reference.match_prefix = lambda handle: handle + 99  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        machine.match_prefix(0)
