"""Caches as shares of one that loses nothing."""

import math

from hybrid_blocks.tools.plan import ArenaPlan
from hybrid_blocks.tools.replay.cache import UNBOUNDED, Cache, plan_cache
from hybrid_blocks.tools.replay.errors import ReplayError
from hybrid_blocks.tools.trace import (
    SharedPrefixes,
    Sharing,
    Trace,
    measure_sharing,
    shared_prefixes,
)

ROOM = 4.0
"""How many times the bytes of an unbounded cache leave room for every placement's checkpoints, and
for the padding of vLLM's blocks."""


class SharedCache:
    """A model's cache, and what an unbounded one would hold of a trace.

    Attributes:
        prefixes: how the trace's prompts agree, at the cache's block size.
        sharing: the sums of it.
        unbounded_bytes: of all distinct blocks, and of a state wherever a prompt ends or leaves
            another; independent of where a manager really keeps states.
    """

    def __init__(self, trace: Trace, cache: Cache) -> None:
        if cache.model is None or cache.deployment is None:
            raise ReplayError("--share needs a model to plan its caches: give --model")
        self._model = cache.model
        self._deployment = cache.deployment
        block_size = cache.geometry.hash_block_size
        self.prefixes: SharedPrefixes = shared_prefixes(trace, block_size)
        sharing = measure_sharing(trace, block_size, self.prefixes)
        if sharing is None:
            raise ReplayError("the trace has too many blocks to say what it shares: give --limit")
        self.sharing: Sharing = sharing
        self.unbounded_bytes = _unbounded_bytes(sharing, cache.geometry)

    def at(self, share: float) -> Cache:
        """Plan a cache of a share of the unbounded bytes; ``inf`` has room for everything."""
        factor = ROOM if math.isinf(share) else share
        return plan_cache(self._model, int(factor * self.unbounded_bytes), self._deployment)


def read_shares(text: str) -> tuple[float, ...]:
    """Read shares like ``5%,10%,unbounded``."""
    return tuple(_read_share(part.strip()) for part in text.split(","))


def _read_share(text: str) -> float:
    if text == UNBOUNDED:
        return math.inf
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not text.endswith("%") or not 0 < share < math.inf:
        raise ReplayError(f"{text!r} is no share of an unbounded cache, such as 5% or {UNBOUNDED}")
    return share


def share_text(share: float) -> str:
    """Write a share."""
    return UNBOUNDED if math.isinf(share) else f"{100 * share:.4g}%"


def _unbounded_bytes(sharing: Sharing, geometry: ArenaPlan) -> int:
    size = geometry.hash_block_size
    block = sum(g.block_bytes * size // g.block_tokens for g in geometry.groups if g.grows)
    states = sum(group.block_bytes for group in geometry.groups if group.kind == "state")
    return block * sharing.unique_blocks + states * sharing.resume_points
