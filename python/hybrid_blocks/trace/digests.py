"""Keyed digests: they tell blocks apart within a file, and say nothing outside it."""

import binascii
import hashlib
import secrets
from collections.abc import Iterable
from typing import Final

_BYTES: Final = 9
_CHARACTERS: Final = 12


class Digests:
    """Makes the digests of one file; its key is random and is never stored."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, hashes: Iterable[bytes]) -> str:
        """Return a digest for each hash, one behind another."""
        # The key stands before each hash: BLAKE2 needs no more to be a keyed hash.
        key, blake2b = self._key, hashlib.blake2b
        digests = [blake2b(key + it, digest_size=_BYTES).digest() for it in hashes]
        return binascii.b2a_base64(b"".join(digests), newline=False).decode()


def count(text: str) -> int:
    """Return how many digests stand one behind another; a ``ValueError`` if one is cut off."""
    number, rest = divmod(len(text), _CHARACTERS)
    if rest:
        raise ValueError(
            f"digests have {_CHARACTERS} characters each, and these have {len(text)} together"
        )
    return number


def split(text: str) -> list[str]:
    """Return the digests that stand one behind another."""
    return [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
