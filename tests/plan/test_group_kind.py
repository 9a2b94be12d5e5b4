"""Memory that a kind of layers holds, against a request that is followed token by token."""

from itertools import product

import numpy as np
import pytest
from hybrid_blocks.model.kind import GroupKind

KINDS = [GroupKind(name="full")] + [
    GroupKind(name=name, window=it) for name in ("sliding_window", "chunked") for it in range(1, 13)
]


def read_by(kind: GroupKind, token: int) -> range:
    """The tokens that one token reads, by the definition of the layer."""
    match kind.name, kind.window:
        case "sliding_window", int(window):
            return range(max(token - window + 1, 0), token + 1)
        case "chunked", int(chunk):
            return range(token // chunk * chunk, token + 1)
        case _:
            return range(token + 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_skipped_tokens_are_those_that_no_later_token_reads(kind: GroupKind) -> None:
    for computed in range(40):
        first = min(min(read_by(kind, later)) for later in range(computed, 80))
        assert kind.num_skipped_tokens(computed) == first


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_live_tokens_are_those_that_the_last_token_reads(kind: GroupKind) -> None:
    assert kind.num_live_tokens(0) == 0
    for length in range(1, 40):
        assert kind.num_live_tokens(length) == len(read_by(kind, length - 1))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_array_of_lengths_gives_what_each_length_gives(kind: GroupKind) -> None:
    lengths = np.arange(40, dtype=np.int64)
    skipped = [kind.num_skipped_tokens(n) for n in range(40)]
    assert kind.num_skipped_tokens(lengths).tolist() == skipped
    assert kind.num_live_tokens(lengths).tolist() == [kind.num_live_tokens(n) for n in range(40)]


def held(kind: GroupKind, num_tokens: int, max_chunk: int, block: int) -> tuple[int, int]:
    """Most tokens and blocks that any order of steps holds: blocks go back after each step."""
    tokens = blocks = 0
    for computed, chunk in product(range(num_tokens), range(1, max_chunk + 1)):
        first, end = kind.num_skipped_tokens(computed), min(computed + chunk, num_tokens)
        tokens = max(tokens, end - first)
        blocks = max(blocks, -(-end // block) - first // block)
    return tokens, blocks


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_request_holds_more_than_its_peak_and_a_long_one_reaches_it(kind: GroupKind) -> None:
    for block, max_chunk in product(range(1, 7), range(1, 8)):
        # Twelve windows on, every place of a window in a block has occurred.
        long = 12 * (kind.window or 1) + max_chunk + block
        for num_tokens in (*range(1, 30), long):
            tokens, blocks = held(kind, num_tokens, max_chunk, block)
            assert tokens <= kind.peak_tokens(num_tokens, max_chunk)
            assert blocks <= kind.peak_blocks(num_tokens, max_chunk, block)
        assert tokens == kind.peak_tokens(long, max_chunk)
        assert blocks == kind.peak_blocks(long, max_chunk, block)


def test_a_window_touches_no_block_that_the_looser_bound_would_add() -> None:
    """With h = 17 tokens in blocks of b = 16, ceil(h / b) + 1 would be 3."""
    window = GroupKind(name="sliding_window", window=16)
    assert window.peak_tokens(10_000, 2) == 17
    assert window.peak_blocks(10_000, 2, 16) == held(window, 100, 2, 16)[1] == 2


def test_a_chunk_begins_inside_a_block_only_if_it_is_no_multiple_of_one() -> None:
    """ceil((chunk + s) / b) blocks would be 2 and 3: one too few, and one too many."""
    uneven, even = (GroupKind(name="chunked", window=window) for window in (5, 8))
    assert uneven.peak_blocks(1000, 2, 4) == held(uneven, 200, 2, 4)[1] == 3
    assert even.peak_blocks(1000, 1, 4) == held(even, 200, 1, 4)[1] == 2


def test_an_encoder_holds_its_own_tokens_and_a_state_none() -> None:
    cross = GroupKind(name="cross", encoder_tokens=1500)
    assert cross.num_live_tokens(7) == cross.peak_tokens(7, 1) == 1500
    assert cross.peak_blocks(7, 1, 16) == 94
    assert GroupKind(name="state").num_live_tokens(500) == 0
