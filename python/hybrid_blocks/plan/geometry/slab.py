"""The choice of the slab size.

Every block size must divide the slab, so blocks are padded up to a stride that does; small slabs
let memory move between pools at a fine grain, large ones need less padding. The cost of a slab, as
a share of the memory:

    padding   sum over groups of (bytes a typical request has in the group / all its bytes)
              * (stride / block - 1)
    grain     slab / memory * (1 + OPEN_SLABS * pools that cut their slabs): the null slab, and the
              holes in slabs that are neither full nor free; a pool of whole slabs has none

where memory stands for REFERENCE_BYTES, or REFERENCE_REQUESTS of a small model. The free memory of
a GPU has no part in it: all ranks choose the same slab, and more memory is always more slabs.

Between two multiples of a block size the padding only grows with the slab, so the multiples of each
block size, rounded up until all strides are whole, are the only sizes worth a look.
"""

from collections.abc import Sequence
from heapq import merge
from itertools import count
from math import inf, lcm
from typing import Final

import msgspec

from hybrid_blocks.arithmetic import round_up

STRIDE_ALIGNMENT: Final = 128
"""Bytes; a GPU cache line. Rows and vectors of every kernel start aligned."""

OPEN_SLABS: Final = 8
"""Slabs' worth of holes in a pool at full load: 7 to 12 were seen when conversations of 1,400
tokens on average come and go in 24 GiB, for slabs of 10 to 50 MB."""

REFERENCE_BYTES: Final = 24 * 2**30
"""Free KV memory of a common GPU."""

REFERENCE_REQUESTS: Final = 400
"""Typical requests by which the memory of a small model is judged."""


class Demand(msgspec.Struct, frozen=True):
    """Bytes of a group's block, and the bytes that a typical request has in the group."""

    block_bytes: int
    typical_bytes: int


class Slab(msgspec.Struct, frozen=True):
    """A slab size, the blocks of each demand in it, and its cost as a share of the memory."""

    slab_bytes: int
    blocks_per_slab: tuple[int, ...]
    cost: float


def choose(demands: Sequence[Demand]) -> Slab:
    """Cheapest slab for groups with the given blocks; the smaller of two that cost the same."""
    shares = _shares(demands)
    typical = sum(demand.typical_bytes for demand in demands)
    memory = min(REFERENCE_BYTES, REFERENCE_REQUESTS * typical)
    cut_pools = 1 if len(shares) > 1 else 0
    best_cost, best_bytes, best_cuts = inf, 0, dict.fromkeys(shares, 1)
    for size in merge(*(count(round_up(max(shares), block), block) for block in shares)):
        if size / memory * (1 + OPEN_SLABS * cut_pools) > best_cost:
            break  # sizes ascend, and the grain alone costs more by now
        cuts = {block: size // block for block in shares}
        slab_bytes = round_up(size, STRIDE_ALIGNMENT * lcm(*cuts.values()))
        padding = sum(
            share * (slab_bytes / (cuts[block] * block) - 1) for block, share in shares.items()
        )
        open_slabs = OPEN_SLABS * sum(cut > 1 for cut in set(cuts.values()))
        cost = padding + slab_bytes / memory * (1 + open_slabs)
        if cost < best_cost:
            best_cost, best_bytes, best_cuts = cost, slab_bytes, cuts
    return Slab(best_bytes, tuple(best_cuts[demand.block_bytes] for demand in demands), best_cost)


def _shares(demands: Sequence[Demand]) -> dict[int, float]:
    """Share of a typical request's bytes that lies in blocks of each size."""
    typical = sum(demand.typical_bytes for demand in demands)
    shares: dict[int, float] = {}
    for demand in demands:
        share = demand.typical_bytes / typical
        shares[demand.block_bytes] = shares.get(demand.block_bytes, 0.0) + share
    return shares
