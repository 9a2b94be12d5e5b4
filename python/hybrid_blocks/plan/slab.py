"""The choice of the slab size.

Every block size must divide the slab, so blocks are padded up to a stride that does; small slabs
let memory move between pools at a fine grain, large ones need less padding. The cost of a slab, as
a share of the memory:

    padding   sum over groups of (bytes a typical request has in the group / all its bytes)
              * (stride / block - 1)
    grain     slab / memory * (1 + pools / 2): the null slab, and half a slab open in each pool
    tail      (memory mod slab) / memory

Between two multiples of a block size the padding only grows with the slab, so the multiples of each
block size, rounded up until all strides are whole, are the only sizes worth a look.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from math import lcm
from typing import Final

import msgspec

from hybrid_blocks.plan.arithmetic import round_up

STRIDE_ALIGNMENT: Final = 128
"""Bytes; a GPU cache line. Rows and vectors of every kernel start aligned."""

_LARGEST_SHARE: Final = 128
"""Slabs above memory / this are only considered while they hold one block of the widest group."""


class Demand(msgspec.Struct, frozen=True):
    """Bytes of a group's block, and the bytes that a typical request has in the group."""

    block_bytes: int
    typical_bytes: int


class Slab(msgspec.Struct, frozen=True):
    """A slab size, the blocks of each demand in it, and its cost as a share of the memory."""

    slab_bytes: int
    blocks_per_slab: tuple[int, ...]
    cost: float


def choose(demands: Sequence[Demand], memory_bytes: int) -> Slab:
    """Cheapest slab for groups with the given blocks; the smaller of two that cost the same."""
    best: Slab | None = None
    for size, cuts in _sizes(demands, memory_bytes):
        if best is not None and size / memory_bytes > best.cost:
            break  # sizes ascend, and the null slab alone costs more by now
        unit = STRIDE_ALIGNMENT * lcm(*cuts)
        slab = _weigh(round_up(size, unit), cuts, demands, memory_bytes)
        if best is None or slab.cost < best.cost:
            best = slab
    assert best is not None, "there is at least one multiple of the widest block"
    return best


def _sizes(demands: Sequence[Demand], memory_bytes: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Multiples of the block sizes, ascending, and how many blocks of each demand they hold."""
    blocks = {demand.block_bytes for demand in demands}
    widest = max(blocks)
    largest = max(2 * widest, memory_bytes // _LARGEST_SHARE)
    multiples = (range(round_up(widest, block), largest + 1, block) for block in blocks)
    for size in merge(*multiples):
        yield size, tuple(size // demand.block_bytes for demand in demands)


def _weigh(
    slab_bytes: int, cuts: tuple[int, ...], demands: Sequence[Demand], memory_bytes: int
) -> Slab:
    typical = sum(demand.typical_bytes for demand in demands) or 1
    padding = sum(
        demand.typical_bytes / typical * (slab_bytes / (cut * demand.block_bytes) - 1)
        for cut, demand in zip(cuts, demands, strict=True)
    )
    grain = slab_bytes / memory_bytes * (1 + len(set(cuts)) / 2)
    tail = memory_bytes % slab_bytes / memory_bytes
    return Slab(slab_bytes, cuts, padding + grain + tail)
