"""Bad input gets an exception that says what was wrong, and leaves everything as it was."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hybrid_blocks import BlockManager, GroupSpec, block_hasher
from hybrid_blocks.errors import (
    BlockError,
    DuplicateRequestError,
    RequestTooLargeError,
    UnknownRequestError,
)
from hybrid_blocks.errors import InvalidArgumentError as Invalid

HUGE = 2**31 - 1


def handles(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def counts(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def each_of(cases: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Run a test for each case: its name, a call, the error it gets and what the message says."""
    return pytest.mark.parametrize(
        ("call", "error", "message"), [pytest.param(*case[1:], id=case[0]) for case in cases]
    )


def new_manager(**options: Any) -> BlockManager:
    options = {"num_blocks": 9, "enable_events": True} | options
    return BlockManager([GroupSpec("full", 4)], block_hasher("sha256", block_size=4), **options)


def busy_manager() -> BlockManager:
    """Two requests: handle 0 has computed 6 of 10 tokens, handle 1 waits."""
    manager = new_manager()
    assert manager.add_request("runs", list(range(10))) == 0
    assert manager.add_request("waits", list(range(7))) == 1
    assert manager.allocate(handles(0), counts(6)) == 1
    manager.advance(handles(0), counts(6))
    return manager


def state(manager: BlockManager) -> Any:
    known = [manager.find(name) for name in ("runs", "waits", "new")]
    seen = [(manager.progress(h), manager.block_ids(h).tolist()) for h in (0, 1)]
    return known, seen, manager.num_free_blocks, manager.stats(), manager.take_events()


REFUSED_BY_THE_MANAGER: list[tuple[str, Callable[[BlockManager], object], type, str]] = [
    ("unknown request", lambda m: m.match_prefix(7), UnknownRequestError, "no request has handle"),
    ("negative handle", lambda m: m.match_prefix(-1), Invalid, "-1"),
    ("handle is a str", lambda m: m.progress("0"), Invalid, "handle"),  # type: ignore[arg-type]
    ("unknown in a batch", lambda m: m.free(handles(0, 7)), UnknownRequestError, "handle 7"),
    ("negative in a batch", lambda m: m.free(handles(0, -1)), UnknownRequestError, "handle"),
    ("freed twice", lambda m: m.free(handles(0, 0)), Invalid, "given twice"),
    ("preempted twice", lambda m: m.preempt(handles(0, 0)), Invalid, "given twice"),
    (
        "id in use",
        lambda m: m.add_request("runs", [1]),
        DuplicateRequestError,
        'request id "runs" is in use',
    ),
    ("id is bytes", lambda m: m.add_request(b"new", [1]), TypeError, "str"),  # type: ignore[arg-type]
    ("too long", lambda m: m.add_request("new", [1] * 33), RequestTooLargeError, "32 tokens fit"),
    ("token is a str", lambda m: m.add_request("new", ["1"]), Invalid, "token 0"),  # type: ignore[list-item]
    ("token is a float", lambda m: m.add_request("new", [1, 2.5]), Invalid, "token 1"),  # type: ignore[list-item]
    ("token beyond 64 bits", lambda m: m.add_request("new", [2**64]), Invalid, "64"),
    ("tokens are None", lambda m: m.add_request("new", None), Invalid, "tokens are"),  # type: ignore[arg-type]
    (
        "tokens are float64",
        lambda m: m.add_request("new", np.zeros(4)),  # type: ignore[arg-type]
        Invalid,
        "int32 or int64",
    ),
    (
        "tokens are two-dimensional",
        lambda m: m.add_request("new", np.zeros((2, 2), dtype=np.int32)),
        Invalid,
        "one dimension",
    ),
    ("extra keys of another length", lambda m: m.add_request("new", [1] * 8, [None]), Invalid, "2"),
    ("negative count", lambda m: m.allocate(handles(0), counts(-1)), Invalid, "not -1"),
    ("absurd count", lambda m: m.allocate(handles(0), counts(HUGE)), RequestTooLargeError, "32"),
    (
        "absurd lookahead",
        lambda m: m.allocate(handles(0), counts(1), lookahead=HUGE),
        RequestTooLargeError,
        "32 tokens fit",
    ),
    ("lookahead", lambda m: m.allocate(handles(0), counts(1), lookahead=-1), Invalid, "not -1"),
    ("lengths differ", lambda m: m.allocate(handles(0, 1), counts(1)), Invalid, "2 handles but 1"),
    ("no room", lambda m: m.advance(handles(0), counts(3)), Invalid, "room for 6"),
    ("not running", lambda m: m.advance(handles(1), counts(0)), Invalid, "waits"),
    ("one bad of a batch", lambda m: m.advance(handles(0, 1), counts(0, 1)), Invalid, "waits"),
    (
        "handles are int32",
        lambda m: m.free(counts(0)),
        Invalid,
        "(int64) come as a one-dimensional array, not one of int32 with shape [1]",
    ),
    ("counts are int64", lambda m: m.advance(handles(0), handles(0)), Invalid, "int32"),
    (
        "handles are a list",
        lambda m: m.free([0]),  # type: ignore[arg-type]
        Invalid,
        "array, not <class 'list'> [0]",
    ),
    (
        "handles are two-dimensional",
        lambda m: m.free(np.zeros((1, 1), dtype=np.int64)),
        Invalid,
        "one-dimensional",
    ),
    ("apart", lambda m: m.free(np.zeros(4, dtype=np.int64)[::2]), Invalid, "contiguous"),
    (
        "appended tokens not contiguous",
        lambda m: m.append_tokens(handles(0, 1), np.zeros(4, dtype=np.int32)[::2]),
        Invalid,
        "contiguous",
    ),
    ("group that is not there", lambda m: m.block_ids(0, 3), Invalid, "group 3"),
    ("negative group", lambda m: m.block_ids(0, -1), Invalid, "not -1"),
    ("reset while running", lambda m: m.reset(), BlockError, "still have owners"),
]


@each_of(REFUSED_BY_THE_MANAGER)
def test_the_manager_refuses_and_stays_as_it_was(
    call: Callable[[BlockManager], object], error: type[Exception], message: str
) -> None:
    manager = busy_manager()
    manager.take_events()
    before = state(manager)
    with pytest.raises(error, match=re.escape(message)):
        call(manager)
    assert state(manager) == before
    manager.check_integrity()
    assert manager.allocate(handles(0, 1), counts(4, 3)) == 2, "it goes on"


CANNOT_BE: list[tuple[str, dict[str, Any], str]] = [
    ("no block", {"num_blocks": 0}, "1 to"),
    ("fewer than no block", {"num_blocks": -1}, "not -1"),
    ("more blocks than ids", {"num_blocks": 2**32 - 1}, "1 to"),
    ("more blocks than 32 bits", {"num_blocks": 2**40}, "4294967295"),
    ("blocks are a float", {"num_blocks": 1.5}, "1.5"),
    ("no memory at all", {"num_blocks": None}, "either num_blocks"),
    ("slabs but no sizes", {"num_blocks": None, "num_slabs": 4}, "either num_blocks"),
    ("both kinds", {"num_slabs": 4, "blocks_per_slab": [1]}, "either num_blocks"),
    ("a slab of no block", {"num_blocks": None, "num_slabs": 4, "blocks_per_slab": [0]}, "1 to"),
    ("a slab of -1", {"num_blocks": None, "num_slabs": 4, "blocks_per_slab": [-1]}, "not -1"),
    ("one slab", {"num_blocks": None, "num_slabs": 1, "blocks_per_slab": [1]}, "2 slabs"),
    ("nothing is ever computed", {"max_in_flight_tokens": 0}, "max_in_flight_tokens"),
]


@pytest.mark.parametrize(
    ("options", "message"), [pytest.param(*case[1:], id=case[0]) for case in CANNOT_BE]
)
def test_a_manager_that_cannot_be_is_not_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        new_manager(**options)


def test_a_group_that_cannot_be_is_not_made() -> None:
    hasher = block_hasher("sha256", block_size=4)
    with pytest.raises(Invalid, match="multiple of the hash block size"):
        BlockManager([GroupSpec("full", 6)], hasher, num_blocks=4)
    with pytest.raises(Invalid, match="pool 2 of 1"):
        BlockManager([GroupSpec("full", 4, pool=2)], hasher, num_blocks=4)
    with pytest.raises(Invalid, match="at least one group"):
        BlockManager([], hasher, num_blocks=4)
    with pytest.raises(Invalid, match="window of at least 1"):
        BlockManager([GroupSpec("sliding_window", 4, window=0)], hasher, num_blocks=4)
    with pytest.raises(Invalid, match="kind"):
        GroupSpec("dense", 4)
