"""Digests that tell hashes apart, and say nothing without their key."""

import json

import pytest
from hybrid_blocks._core import keyed_digests
from hybrid_blocks.errors import InvalidArgumentError

KEY = bytes(range(16))


def test_a_list_of_digests_is_json() -> None:
    hashes = [b"one" * 10, b"two" * 10, b"one" * 10]
    digests = json.loads(keyed_digests(KEY, hashes))
    assert [len(digest) for digest in digests] == [11, 11, 11]
    assert digests[0] == digests[2] != digests[1]
    assert json.loads(keyed_digests(KEY, [])) == []


def test_the_digest_is_the_published_function() -> None:
    # SipHash-2-4 of no bytes with 128 bits is a3817f04ba25a8e66d... under this key.
    (digest,) = json.loads(keyed_digests(KEY, [b""]))
    number = 0x930255C71472F66DE6A825BA047F81A3
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    assert digest == "".join(letters[number >> 6 * at & 63] for at in range(11))


def test_another_key_gives_other_digests() -> None:
    hashes = [bytes([number]) * 32 for number in range(200)]
    first, second = (set(json.loads(keyed_digests(bytes([it]) * 16, hashes))) for it in (1, 2))
    assert len(first | second) == 400


def test_a_key_of_another_size_and_a_hash_that_is_no_bytes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a key has 16 bytes, and this one 3"):
        keyed_digests(b"key", [])
    with pytest.raises(TypeError):
        keyed_digests(KEY, [3])  # type: ignore[list-item]
