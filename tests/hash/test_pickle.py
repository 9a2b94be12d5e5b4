"""The corners of the pickle format: frames, long data, the memo and object identity."""

from typing import Any

import pytest
from hybrid_blocks.hashing import BlockHasher, hash_function

PARENT = bytes(32)
FRAME = 64 * 1024
SHA256 = hash_function("sha256")


def digest_without_fallback(tokens: list[int], extra: object = None) -> bytes:
    def refuse(value: object) -> bytes:
        raise AssertionError(f"the core left {value!r:.100} to Python")

    hasher = BlockHasher("sha256", 16, PARENT, refuse)
    return hasher.hash_block(tokens, PARENT, extra)


def digest_and_fallbacks(tokens: Any, parent: bytes, extra: object) -> tuple[bytes, int]:
    calls = []

    def count(value: object) -> bytes:
        calls.append(value)
        return SHA256(value)

    hasher = BlockHasher("sha256", 16, PARENT, count)
    return hasher.hash_block(tokens, parent, extra), len(calls)


@pytest.mark.parametrize("token", [7, 300, 70_000, 2**40])
@pytest.mark.parametrize("extra", [None, ("key",), (("mm", "id", 3),)])
def test_a_block_may_end_anywhere_around_the_end_of_a_frame(token: int, extra: object) -> None:
    size = {7: 2, 300: 3, 70_000: 5, 2**40: 8}[token]
    around = FRAME // size
    for num_tokens in range(around - 40, around + 20):
        tokens = [token] * num_tokens
        expected = SHA256((PARENT, tuple(tokens), extra))
        assert digest_without_fallback(tokens, extra) == expected, num_tokens


def test_a_block_may_fill_several_frames() -> None:
    tokens = list(range(100_000))
    assert digest_without_fallback(tokens) == SHA256((PARENT, tuple(tokens), None))


@pytest.mark.parametrize("length", [255, 256, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_long_texts_and_bytes_lie_outside_a_frame(length: int, kind: str) -> None:
    long: object = "x" * length if kind == "text" else b"x" * length
    for extra in (long, (long,), (long, long), ("a", long, "b"), (long, None, long, 1)):
        assert digest_without_fallback([1], extra) == SHA256((PARENT, (1,), extra))


def test_the_same_object_twice_is_written_once_and_an_equal_one_again() -> None:
    text, twin = "adapter", "".join(["adap", "ter"])
    assert text == twin
    assert text is not twin
    for extra in ((text, text), (text, twin), ((text, 1), (twin, 1)), ((text,), (text,))):
        assert digest_without_fallback([1], extra) == SHA256((PARENT, (1,), extra))
    shared, equal = (text, text), (text, twin)
    assert digest_without_fallback([1], shared) != digest_without_fallback([1], equal)


def test_the_memo_may_hold_more_than_256_objects() -> None:
    texts = [f"image {i}" for i in range(600)]
    extra = tuple(("mm", text, i) for i, text in enumerate(texts)) + tuple(texts)
    assert digest_without_fallback([1, 2, 3], extra) == SHA256((PARENT, (1, 2, 3), extra))


def test_an_alias_of_the_parent_or_of_the_tokens_is_left_to_python() -> None:
    tokens = (1, 2)
    for extra in ((PARENT,), (tokens,)):
        expected = SHA256((PARENT, tokens, extra))
        assert digest_and_fallbacks(tokens, PARENT, extra) == (expected, 1)
    copy = bytes(bytearray(PARENT))
    assert digest_and_fallbacks(tokens, PARENT, (copy,)) == (SHA256((PARENT, tokens, (copy,))), 0)


class Name(str):
    __slots__ = ()


DEEP: tuple[Any, ...] = ()
for _ in range(40):
    DEEP = (DEEP,)


@pytest.mark.parametrize("extra", [Name("a"), [1], {"a": 1}, 2**63, "\ud800", DEEP, 1j, ("a", [])])
def test_what_is_not_plain_is_left_to_python(extra: object) -> None:
    expected = SHA256((PARENT, (1,), extra))
    assert digest_and_fallbacks([1], PARENT, extra) == (expected, 1)
