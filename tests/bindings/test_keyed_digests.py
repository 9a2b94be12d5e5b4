"""Digests that tell hashes apart, and say nothing without their key."""

import base64

import pytest
from hybrid_blocks._core import KeyedDigests
from hybrid_blocks.errors import InvalidArgumentError

KEY = bytes(range(16))


def each(key: bytes, hashes: list[bytes]) -> list[str]:
    text = KeyedDigests(key).text(hashes)
    assert len(text) == 12 * len(hashes)
    return [text[at : at + 12] for at in range(0, len(text), 12)]


def test_equal_hashes_alone_have_equal_digests() -> None:
    one, two, again, cut = each(KEY, [b"one" * 10, b"two" * 10, b"one" * 10, b"one" * 5])
    assert one == again
    assert len({one, two, cut}) == 3
    assert each(KEY, []) == []


def test_the_digest_is_the_published_cipher() -> None:
    # FIPS 197, appendix C.1, with the size of 16 bytes in the first byte.
    (digest,) = each(KEY, [bytes.fromhex("10112233445566778899aabbccddeeff")])
    assert base64.b64decode(digest).hex() == "69c4e0d86a7b0430d8"


def test_another_key_gives_other_digests() -> None:
    hashes = [bytes([number]) * 32 for number in range(200)]
    first, second = (set(each(bytes([it]) * 16, hashes)) for it in (1, 2))
    assert len(first | second) == 400


def test_hashes_may_come_one_by_one() -> None:
    hashes = [bytes([number]) * 16 for number in range(9)]
    assert KeyedDigests(KEY).text(iter(hashes)) == "".join(each(KEY, hashes))


def test_a_key_of_another_size_and_a_hash_that_is_no_bytes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a key has 16 bytes, and this one 3"):
        KeyedDigests(b"key")
    with pytest.raises(TypeError):
        KeyedDigests(KEY).text([3])  # type: ignore[list-item]


def test_a_key_is_not_shown() -> None:
    digests = KeyedDigests(KEY)
    shown = [name for name in dir(digests) if not name.startswith("__")]
    assert shown == ["text"]
    assert KEY.hex() not in repr(digests)
