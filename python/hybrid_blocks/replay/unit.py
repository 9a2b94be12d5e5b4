"""The unit in which a manager counts its memory."""

import msgspec

from hybrid_blocks.plan import ArenaPlan
from hybrid_blocks.units import human


class BlockUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a pool, or a slab where several pools share an arena.

    ``tokens`` are those of an attention block; a slab has no number of its own, as pools cut it
    differently. ``num_bytes`` is None where the cache has no model.
    """

    name: str = "block"
    tokens: int | None = None
    num_bytes: int | None = None

    def __str__(self) -> str:
        tokens = None if self.tokens is None else f"{self.tokens:,} tokens"
        size = None if self.num_bytes is None else human(self.num_bytes)
        sizes = ", ".join(filter(None, (tokens, size)))
        return f"{self.name}s of {sizes}" if sizes else f"{self.name}s"


def unit_of(geometry: ArenaPlan, *, has_model: bool) -> BlockUnit:
    """Return what an arena is counted in: its blocks where every slab is one, else its slabs."""
    num_bytes = geometry.slab_bytes if has_model else None
    if geometry.pools != (1,):
        return BlockUnit(name="slab", num_bytes=num_bytes)
    first = next((group for group in geometry.groups if group.grows), geometry.groups[0])
    return BlockUnit(tokens=first.block_tokens, num_bytes=num_bytes)
