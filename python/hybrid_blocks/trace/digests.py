"""Keyed digests: they tell blocks apart within a file, and say nothing outside it."""

import binascii
import hashlib
import secrets
from collections.abc import Iterable
from typing import Final

_BYTES: Final = 12
_CHARACTERS: Final = 16


class Digests:
    """Makes the digests of one file; its key is random and is never stored."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, hashes: Iterable[bytes]) -> list[str]:
        """Return a digest for each hash."""
        # The key stands before each hash: BLAKE2 needs no more to be a keyed hash.
        key, blake2b = self._key, hashlib.blake2b
        digests = [blake2b(key + it, digest_size=_BYTES).digest() for it in hashes]
        text = binascii.b2a_base64(b"".join(digests), newline=False).decode()
        return [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
