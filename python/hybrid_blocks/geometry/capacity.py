"""The capacity of a geometry.

Requests are counted whole: N requests of a length fit if all pools together, each rounded up to
whole slabs, need no more slabs than there are. The fraction behind the point, for comparison with
vLLM's figure, treats slabs as divisible and stays below the next whole number.
"""

from collections.abc import Callable
from typing import Final

from hybrid_blocks.arithmetic import requests_that_fit
from hybrid_blocks.geometry.arena import ArenaPlan
from hybrid_blocks.model.layer import State

_ALMOST_ONE: Final = 0.99


def requests(geometry: ArenaPlan, length: int) -> int:
    """Most requests of ``length`` tokens that fit at once."""
    return _largest(lambda n: geometry.slabs(n, length) <= geometry.usable_slabs)


def concurrency(geometry: ArenaPlan, length: int) -> float:
    """Return how many requests fit, with a fraction; its whole part is ``requests``.

    It solves (x - 1) * sum(d / c) + sum(p / c) = slabs. In a pool a decoding request holds d
    blocks, a prefilling one p, and a slab c. Below one request x = slabs / sum(p / c).
    """
    decode = slabs_of_one(geometry, length)
    prefill = slabs_of_first(geometry, length)
    ideal = requests_that_fit(geometry.usable_slabs, prefill, decode)
    return min(ideal, requests(geometry, length) + _ALMOST_ONE)


def tokens(geometry: ArenaPlan, length: int) -> int:
    """Token capacity: concurrency * length, so groups that do not grow count once a request."""
    return int(concurrency(geometry, length) * length)


def longest(geometry: ArenaPlan, limit: int) -> int:
    """Longest single request that fits, at most ``limit``; 0 if none does."""
    return _largest(lambda n: geometry.slabs(1, n) <= geometry.usable_slabs, limit)


def needed_bytes(geometry: ArenaPlan, length: int) -> int:
    """Memory for one request of ``length`` tokens and the null slab."""
    return (geometry.slabs(1, length) + 1) * geometry.slab_bytes


def slabs_of_one(geometry: ArenaPlan, length: int) -> float:
    """Slabs, as a fraction, that one more decoding request of ``length`` tokens takes."""
    blocks = geometry.decode_blocks(length)
    return sum(n / cut for n, cut in zip(blocks, geometry.pools, strict=True))


def slabs_of_first(geometry: ArenaPlan, length: int) -> float:
    """Slabs, as a fraction, of the one request that computes its prompt."""
    blocks = geometry.prefill_blocks(length)
    return sum(n / cut for n, cut in zip(blocks, geometry.pools, strict=True))


def state_slots(geometry: ArenaPlan) -> int | None:
    """Slots of every state group that fit while nothing else is held; None without such groups."""
    pools = [group.pool for group in geometry.groups if group.kind == State.kind]
    if not pools:
        return None
    wanted = [(pools.count(pool), geometry.pools[pool]) for pool in set(pools)]
    return _largest(
        lambda n: sum(-(-n * groups // cut) for groups, cut in wanted) <= geometry.usable_slabs
    )


def cuda_graph_batch(geometry: ArenaPlan) -> int | None:
    """Return the largest ``max_num_seqs`` for which vLLM captures full CUDA graphs.

    What it calls the pool's blocks are the slabs, slab 0 included; None without states, as then it
    compares nothing.
    """
    has_states = any(group.kind == State.kind for group in geometry.groups)
    return geometry.num_slabs if has_states else None


def growing_blocks(geometry: ArenaPlan) -> int:
    """Blocks of the first growing group (else the first one) if it had all slabs."""
    group = next((group for group in geometry.groups if group.grows), geometry.groups[0])
    return geometry.usable_slabs * group.blocks_per_slab


def _largest(fits: Callable[[int], bool], limit: int | None = None) -> int:
    """Largest n up to ``limit`` for which ``fits`` holds; it must hold for all smaller ones."""
    high = 1
    while (limit is None or high < limit) and fits(high):
        high *= 2
    high = high if limit is None else min(high, limit)
    if limit is not None and fits(limit):
        return limit
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
