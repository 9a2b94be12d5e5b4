"""Keyed digests: they tell blocks apart within a file, and say nothing outside it."""

from typing import Final

KEY_BYTES: Final = 16
CHARACTERS: Final = 12


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
