"""Keyed digests: they tell blocks apart within a file, and say nothing outside it."""

import secrets
from collections.abc import Iterable
from typing import Final

from hybrid_blocks import _core

KEY_BYTES: Final = 16
CHARACTERS: Final = 12


class Digests:
    """Makes the digests of one file; its key is random and is never stored."""

    def __init__(self) -> None:
        self._keyed = _core.KeyedDigests(secrets.token_bytes(KEY_BYTES))

    def of(self, hashes: Iterable[bytes]) -> str:
        """Return a digest for each hash, one behind another."""
        return self._keyed.text(hashes)


def count(text: str) -> int:
    """Return how many digests stand one behind another; a ``ValueError`` if one is cut off."""
    number, rest = divmod(len(text), CHARACTERS)
    if rest:
        raise ValueError(
            f"digests have {CHARACTERS} characters each, and these have {len(text)} together"
        )
    return number


def split(text: str) -> list[str]:
    """Return the digests that stand one behind another."""
    return [text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS)]
