"""The choice of the slab size.

Every block size must divide the slab, so blocks are padded up to a stride that does; small slabs
let memory move between pools at a fine grain, large ones need less padding. The cost of a slab, as
a share of the memory:

    padding   sum over groups of (bytes a typical request has in the group / all its bytes)
              * (stride / content of a block - 1)
    grain     slab / memory * (1 + OPEN_SLABS * pools that cut their slabs): the null slab, and the
              holes in slabs that are neither full nor free; a pool of whole slabs has none

where memory stands for REFERENCE_BYTES, or REFERENCE_REQUESTS of a small model. The free memory of
a GPU has no part in it: all ranks choose the same slab, and more memory is always more slabs.

Between two multiples of a block size the padding only grows with the slab. So the only candidates
are multiples of each block size, rounded up until all strides are whole.
"""

from functools import lru_cache
from heapq import merge
from itertools import count
from math import inf, lcm
from typing import Final

import msgspec

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.model import PlanError

STRIDE_ALIGNMENT: Final = 128
"""Bytes; a GPU cache line. Rows and vectors of every kernel start aligned."""

OPEN_SLABS: Final = 8
"""Slabs' worth of holes in a pool at full load: 7 to 12 were seen when conversations of 1,400
tokens on average come and go in 24 GiB, for slabs of 10 to 50 MB."""

REFERENCE_BYTES: Final = 24 * 2**30
"""Free KV memory of a common GPU."""

REFERENCE_REQUESTS: Final = 400
"""Typical requests by which the memory of a small model is judged."""

MOST_BLOCKS: Final = 100_000
"""Most blocks of the largest size that a slab may be tried with."""


class Demand(msgspec.Struct, frozen=True):
    """The demand of a group on the slab.

    ``block_bytes`` is the room that a block takes, and ``typical_bytes`` the bytes of a typical
    request in the group. ``content_bytes`` is the used part of a block, by default all of it. A
    ``whole`` group takes a slab for each block; the blocks of a ``dense`` one fill the slab without
    padding.
    """

    block_bytes: int
    typical_bytes: int
    content_bytes: int | None = None
    whole: bool = False
    dense: bool = False

    def padding(self, slab_bytes: int, cut: int) -> float:
        """Padding of ``cut`` blocks a slab, as a share of their content."""
        return slab_bytes / (cut * (self.content_bytes or self.block_bytes)) - 1


class Slab(msgspec.Struct, frozen=True):
    """A slab size, the blocks of each demand in it, and its cost as a share of the memory."""

    slab_bytes: int
    blocks_per_slab: tuple[int, ...]
    cost: float


@lru_cache  # every stage and rank asks for the same slab
def choose(demands: tuple[Demand, ...], num_regions: int = 1) -> Slab:
    """Cheapest slab for groups with the given blocks; the smaller of two that cost the same.

    ``num_regions`` equal parts of a slab must each hold whole, aligned strides.

    Raises:
        PlanError: no slab holds the dense blocks without padding.
    """
    typical = sum(demand.typical_bytes for demand in demands)
    memory = min(REFERENCE_BYTES, REFERENCE_REQUESTS * typical)
    blocks = sorted({demand.block_bytes for demand in demands})
    cut_pools = 1 if len(blocks) > 1 else 0
    best: Slab | None = None
    for size in merge(*(count(round_up(blocks[-1], block), block) for block in blocks)):
        if best is not None and size / memory * (1 + OPEN_SLABS * cut_pools) > best.cost:
            break  # sizes ascend, and the grain alone costs more by now
        if size > MOST_BLOCKS * blocks[-1]:
            break
        cuts = tuple(1 if demand.whole else size // demand.block_bytes for demand in demands)
        slab_bytes = round_up(size, STRIDE_ALIGNMENT * num_regions * lcm(*cuts))
        if any(
            demand.dense and cut * demand.block_bytes != slab_bytes
            for demand, cut in zip(demands, cuts, strict=True)
        ):
            continue
        padding = sum(
            demand.typical_bytes / typical * demand.padding(slab_bytes, cut)
            for demand, cut in zip(demands, cuts, strict=True)
        )
        open_slabs = OPEN_SLABS * sum(cut > 1 for cut in set(cuts))
        cost = padding + slab_bytes / memory * (1 + open_slabs)
        if cost < (best.cost if best else inf):
            best = Slab(slab_bytes, cuts, cost)
    if best is None:
        raise PlanError(
            f"no slab is whole blocks of {blocks} bytes and a multiple of {STRIDE_ALIGNMENT} bytes "
            f"in each of {num_regions} regions"
        )
    return best
