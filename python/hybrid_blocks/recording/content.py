"""Digests of small blocks, where an engine hashes none: its own blocks are larger."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.hashing import block_hasher

BLOCK_TOKENS: Final = 16

_HASHER: Final = block_hasher(block_size=BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Content:
    """A request's tokens, and all else that its blocks depend on.

    Attributes:
        tokens: at least ``num_tokens``, which never change.
        owner: the adapter's name and path, and the salt; empty without any.
        images: identifier, first token and number of tokens of each, in order.
    """

    tokens: list[int]
    num_tokens: int
    owner: tuple[str | None, ...] = ()
    images: Sequence[tuple[str, int, int]] = ()

    def digests(self) -> list[bytes]:
        """Return a digest of each whole block; equal requests of one owner have equal ones."""
        # One text a block: pickle would tell apart equal strings that are two objects.
        parent = _HASHER.hash_block((), None, (repr(self.owner),)) if self.owner else None
        return _HASHER.hash_blocks(self.tokens[: self.num_tokens], parent, self._extra_keys())

    def _extra_keys(self) -> list[tuple[str] | None] | None:
        """Return what each block holds of images, with their places in the block."""
        if not self.images:
            return None
        held: dict[int, list[tuple[str, int]]] = {}
        for name, first, length in self.images:
            for block in range(first // BLOCK_TOKENS, ceil_div(first + length, BLOCK_TOKENS)):
                held.setdefault(block, []).append((name, first - block * BLOCK_TOKENS))
        num_blocks = self.num_tokens // BLOCK_TOKENS
        return [(repr(held[it]),) if it in held else None for it in range(num_blocks)]
