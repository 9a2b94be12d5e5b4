"""Input that cannot be hashed is refused with a message that says why."""

from array import array
from functools import partial
from typing import Any, get_args

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


def digest_of_length(length: int, _: object) -> bytes:
    return bytes(length)


HASHER = block_hasher("sha256", 4)
BOTH_ENDS = np.arange(8, dtype=np.int32)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, 2**63, 3, 4], "token 1 is 9223372036854775808, which does not fit 64 bits"),
        ([1, 2, -(2**63) - 1, 4], "token 2 is -9223372036854775809, which does not fit"),
        ([1.0, 2, 3, 4], "token 0 is 1.0, <class 'float'>, not an int"),
        ([True, 2, 3, 4], "token 0 is True, <class 'bool'>, not an int"),
        ([1, None, 3, 4], "token 1 is None"),
        ((1, 2, "3", 4), "token 2 is 3, <class 'str'>"),
        ([np.int64(1), 2, 3, 4], "token 0 is 1, <class 'numpy.int64'>, not an int"),
        (np.zeros(4), "native int32 or int64"),
        (np.zeros(4, np.uint32), "native int32 or int64"),
        (np.zeros(4, np.int16), "native int32 or int64, not items of 2 bytes"),
        (np.zeros(4, ">i4"), "native int32 or int64"),
        (np.zeros(4, ">i8"), "native int32 or int64"),
        (np.zeros((2, 2), np.int32), r"one dimension, not shape \[2, 2\]"),
        (np.array(4, np.int32), "a one-dimensional buffer"),
        (b"1234", "native int32 or int64, not items of 1 bytes"),
        ("1234", "tokens are a list or tuple of int, or a one-d"),
        (None, "tokens are a list or tuple of int, or a one-d"),
        (7, "tokens are a list or tuple of int, or a one-d"),
    ],
)
def test_tokens_that_are_no_ints_of_64_bits(tokens: Any, message: str) -> None:
    for call in (HASHER.hash_block, HASHER.hash_blocks, HashChain(HASHER).append):
        with pytest.raises(InvalidArgumentError, match=message):
            call(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        array("i", range(0, 8, 2)),
        array("q", range(0, 8, 2)),
        memoryview(array("l", range(0, 8, 2))),
        BOTH_ENDS[::2],
        BOTH_ENDS.astype(np.int64)[::2],
        np.array([0, 2, 4, 6], "<i4"),
    ],
)
def test_any_buffer_of_int32_or_int64_is_taken_strided_ones_too(tokens: Any) -> None:
    assert HASHER.hash_blocks(tokens) == HASHER.hash_blocks([0, 2, 4, 6])


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_digests_of_the_wrong_length(algorithm: Algorithm) -> None:
    hasher = block_hasher(algorithm, 4)
    for length in (0, 15, 16, 17, 31, 32, 33):
        if length == hasher.digest_size:
            continue
        message = f"a {algorithm} digest has {hasher.digest_size} bytes, not {length}"
        with pytest.raises(InvalidArgumentError, match=message):
            hasher.hash_block([1], bytes(length))
        with pytest.raises(InvalidArgumentError, match=message):
            hasher.hash_blocks([1, 2, 3, 4], bytes(length))
        with pytest.raises(InvalidArgumentError, match=message):
            HashChain(hasher, bytes(length))
        with pytest.raises(InvalidArgumentError, match=message):
            block_hasher(algorithm, 4, none_hash=bytes(length))
        short = BlockHasher(algorithm, 4, hasher.none_hash, partial(digest_of_length, length))
        with pytest.raises(InvalidArgumentError, match=message):
            short.hash_block([1], None, [])


def test_a_fallback_that_returns_no_bytes() -> None:
    hasher = BlockHasher("sha256", 4, HASHER.none_hash, str)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="fallback returned <class 'str'>, not bytes"):
        hasher.hash_block([1], None, [])


@pytest.mark.parametrize(
    ("extra_keys", "message"),
    [
        ([], "0 extra keys for 2 full blocks"),
        ([None], "1 extra keys for 2 full blocks"),
        ([None] * 3, "3 extra keys for 2 full blocks"),
        ([None, [1], None], "3 extra keys for 2 full blocks"),
        ("ab", "extra_keys are a list or tuple"),
        ({}, "extra_keys are a list or tuple"),
    ],
)
def test_extra_keys_that_do_not_match_the_blocks(extra_keys: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        HASHER.hash_blocks(list(range(9)), None, extra_keys)


@pytest.mark.parametrize("count", [-1, 2**64, 1.5, "16", None])
def test_counts_that_are_none(count: Any) -> None:
    ahead = partial(block_hasher, "sha256", 16, num_lookahead_tokens=count)
    counting = partial(HashChain(HASHER).num_new_blocks, count)
    for call in (partial(block_hasher, "sha256", count), ahead, counting):
        with pytest.raises(InvalidArgumentError, match="expected a count"):
            call()


def test_blocks_without_tokens() -> None:
    with pytest.raises(InvalidArgumentError, match="block_size is 0"):
        block_hasher("sha256", 0)


def test_the_largest_counts_do_no_harm() -> None:
    largest = 2**64 - 1
    hasher = block_hasher("sha256", largest, num_lookahead_tokens=largest)
    assert hasher.hash_blocks([1, 2, 3]) == []
    chain = HashChain(HASHER)
    chain.append([1, 2, 3])
    assert chain.num_new_blocks(largest) == largest // 4


@pytest.mark.parametrize("call", [block_hasher, hash_function, none_hash])
def test_an_unknown_algorithm(call: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown hash algorithm 'md5'; use one of sha"):
        call("md5")


def test_every_error_is_of_the_packages_own_tree_and_a_value_error() -> None:
    assert issubclass(InvalidArgumentError, HybridBlocksError)
    assert issubclass(InvalidArgumentError, ValueError)


def test_what_python_cannot_serialize_raises_pythons_own_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        block_hasher("sha256_cbor").hash_block([1], None, ("\ud800",))
