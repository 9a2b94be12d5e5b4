"""A chain gives the same digests however its tokens arrive."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.hashing import (
    Algorithm,
    BlockHasher,
    HashChain,
    block_hasher,
    hash_function,
    none_hash,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import algorithms, token_ids


@given(tokens=st.lists(token_ids, max_size=100))
def test_a_list_gives_the_digests_of_a_tuple_of_its_integers(tokens: list[int]) -> None:
    hasher = block_hasher("sha256", 1)
    assert hasher.hash_blocks(tokens) == hasher.hash_blocks(tuple(tokens))


@given(algorithm=algorithms, tokens=st.lists(token_ids, max_size=50), cut=st.integers(0, 12))
def test_hashing_goes_on_after_any_block(algorithm: Algorithm, tokens: list[int], cut: int) -> None:
    hasher = block_hasher(algorithm, 4)
    whole = hasher.hash_blocks(tokens)
    if cut <= len(whole):
        parent = whole[cut - 1] if cut else None
        assert hasher.hash_blocks(tokens[4 * cut :], parent) == whole[cut:]
        assert HashChain(hasher, parent).append(tokens[4 * cut :]) == whole[cut:]


def test_lookahead_tokens_enter_as_extra_keys() -> None:
    hasher = block_hasher("sha256", 2, num_lookahead_tokens=2)
    sha256 = hash_function("sha256")
    first = sha256((hasher.none_hash, (1, 2), (None, 3, 4)))
    second = sha256((first, (3, 4), (("salt",), 5, 6)))
    assert hasher.hash_blocks([1, 2, 3, 4, 5, 6, 7], None, [None, ("salt",)]) == [first, second]


def test_extra_keys_of_any_kind_reach_their_block() -> None:
    hasher = block_hasher("sha256", 2, num_lookahead_tokens=1)
    chain, sha256 = HashChain(hasher), hash_function("sha256")
    parent, expected = hasher.none_hash, []
    extras = [["exotic"], ("plain",), None, ({"exotic": 1},)]
    for i, extra in enumerate(extras):
        parent = sha256((parent, (2 * i, 2 * i + 1), (extra, 2 * i + 2)))
        expected.append(parent)
    assert chain.append([0, 1, 2], extras[:1]) == expected[:1]
    assert chain.append([3, 4, 5, 6, 7, 8], extras[1:]) == expected[1:]


def failing(error: Exception) -> Callable[[object], bytes]:
    def fail(_: object) -> bytes:
        raise error

    return fail


def test_a_failed_append_changes_nothing() -> None:
    hasher = BlockHasher("sha256", 2, none_hash("sha256"), failing(KeyError("no")))
    chain = HashChain(hasher)
    start = chain.append([1, 2, 3])
    before = (chain.parent, chain.num_blocks, chain.num_tokens)
    with pytest.raises(KeyError, match="no"):
        chain.append([4, 5, 6], [None, [1]])
    with pytest.raises(InvalidArgumentError):
        chain.append([4, 5, 6], [None])
    with pytest.raises(InvalidArgumentError):
        chain.append([4, 5, 2**63])
    assert (chain.parent, chain.num_blocks, chain.num_tokens) == before
    assert start + chain.append([4, 5, 6]) == hasher.hash_blocks([1, 2, 3, 4, 5, 6])


def test_an_append_from_within_an_append_is_refused() -> None:
    errors: list[str] = []

    def reenter(_: object) -> bytes:
        try:
            chain.append([1])
        except HybridBlocksError as error:
            errors.append(str(error))
        return bytes(32)

    chain = HashChain(BlockHasher("sha256", 2, bytes(32), reenter))
    assert chain.append([1, 2], [[1]]) == [bytes(32)]
    assert len(errors) == 1
    assert "in progress" in errors[0]


def test_a_long_prompt_is_hashed_from_several_threads_at_once() -> None:
    hasher = block_hasher("sha256_cbor", 16)
    prompts = [np.random.default_rng(i).integers(0, 150_000, 40_000) for i in range(4)]
    expected = [hasher.hash_blocks(prompt.tolist()) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(hasher.hash_blocks, prompts)) == expected
