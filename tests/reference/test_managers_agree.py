"""The Rust manager and the plain Python one, side by side."""

from collections.abc import Callable

import numpy as np
import pytest
from hybrid_blocks import BlockManager, GroupSpec, HybridBlocksError, block_hasher
from hybrid_blocks.reference import ReferenceManager
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


class SideBySide(RuleBasedStateMachine):
    """Any order of calls gives equal answers and equal block tables."""

    def __init__(self) -> None:
        super().__init__()
        self.managers: tuple[AnyManager, AnyManager] = (rust(), python())
        self.handles: list[tuple[int, int]] = []
        self.added = 0

    def both(self, call: Callable[[AnyManager, int], object], chosen: tuple[int, int]) -> object:
        answers = []
        for manager, handle in zip(self.managers, chosen, strict=True):
            try:
                answers.append(call(manager, handle))
            except HybridBlocksError as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(
        start=st.integers(0, 2),
        branch=st.integers(0, 12),
        length=st.integers(1, 4 * NUM_BLOCKS + 3),
    )
    def add(self, start: int, branch: int, length: int) -> None:
        tokens = np.full(length, start, dtype=np.int32)
        tokens[branch:] += np.int32(10 + branch)
        self.added += 1
        answers = []
        for manager in self.managers:
            try:
                answers.append(manager.add_request(str(self.added), tokens))
            except HybridBlocksError:
                answers.append(-1)
        rust_handle, python_handle = answers
        assert (rust_handle < 0) == (python_handle < 0)
        if rust_handle >= 0:
            self.handles.append((rust_handle, python_handle))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def match(self, data: st.DataObject) -> None:
        self.both(lambda m, h: m.match_prefix(h), data.draw(st.sampled_from(self.handles)))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), count=st.integers(0, 20))
    def allocate_after_a_match(self, data: st.DataObject, count: int) -> None:
        chosen = data.draw(st.sampled_from(self.handles))
        self.both(lambda m, h: m.match_prefix(h), chosen)
        self.both(lambda m, h: m.allocate(ids(h), counts(count)), chosen)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), count=st.integers(0, 12))
    def advance(self, data: st.DataObject, count: int) -> None:
        chosen = data.draw(st.sampled_from(self.handles))
        self.both(lambda m, h: m.advance(ids(h), counts(count)), chosen)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), token=st.integers(0, 3))
    def append(self, data: st.DataObject, token: int) -> None:
        chosen = data.draw(st.sampled_from(self.handles))
        self.both(lambda m, h: m.append_tokens(ids(h), counts(token)), chosen)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.handles))
        self.both(lambda m, h: m.preempt(ids(h)), chosen)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.handles))
        self.handles.remove(chosen)
        self.both(lambda m, h: m.free(ids(h)), chosen)

    @invariant()
    def agree(self) -> None:
        left, right = self.managers
        assert left.num_free_blocks == right.num_free_blocks
        for chosen in self.handles:
            self.both(lambda m, h: list(m.block_ids(h)), chosen)
        for manager in self.managers:
            manager.check_integrity()


TestSideBySide = SideBySide.TestCase
TestSideBySide.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
