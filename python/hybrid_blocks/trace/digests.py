"""Keyed digests: they tell blocks apart within a file, and say nothing outside it."""

import secrets

import msgspec

from hybrid_blocks._core import keyed_digests


class Digests:
    """Makes the digests of one file; its key is random and is never stored."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def json(self, hashes: list[bytes]) -> msgspec.Raw:
        """Return a list of a digest for each hash, as a file holds it."""
        return msgspec.Raw(keyed_digests(self._key, hashes))

    def of(self, hashes: list[bytes]) -> list[str]:
        """Return a digest for each hash."""
        digests: list[str] = msgspec.json.decode(self.json(hashes))
        return digests
