"""The cache that a replay runs over: its groups, its memory and the unit of that."""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from hybrid_blocks.model import Model, load_model
from hybrid_blocks.model.layer import RUNNING, FullAttention, State, StateFormat
from hybrid_blocks.tools.plan import ArenaPlan, Deployment, GroupPlan, plan_natural
from hybrid_blocks.tools.replay.config import ReplayError
from hybrid_blocks.tools.trace import (
    SharedPrefixes,
    Sharing,
    Trace,
    measure_sharing,
    shared_prefixes,
)
from hybrid_blocks.units import human, parse_count, parse_memory


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


Int64s = npt.NDArray[np.int64]


class LiveBytes:
    """`ArenaPlan.live_bytes` of many requests at once; tokens are not rounded to blocks."""

    def __init__(self, geometry: ArenaPlan) -> None:
        self._token_groups = [g for g in geometry.groups if g.slots_per_request is None]
        self._state_bytes = sum(
            group.live_bytes(0) for group in geometry.groups if group.slots_per_request is not None
        )

    def of(self, lengths: Int64s) -> int:
        """Return the bytes that requests with ``lengths`` computed tokens need together."""
        total = len(lengths) * self._state_bytes
        for group in self._token_groups:
            tokens = int(group.rules.num_live_tokens(lengths).sum())
            total += tokens * group.block_bytes // group.block_tokens
        return total


UNBOUNDED = "unbounded"
MAX_BLOCKS = 2**26
"""Blocks that a replay keeps track of; of more, it would itself need tens of gigabytes."""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Memory for one model.

    ``geometry`` is its natural plan. ``model`` and ``deployment`` are None where the cache is given
    as a number of blocks: one group that keeps every token, one byte a token.
    """

    geometry: ArenaPlan
    model: Model | None = None
    deployment: Deployment | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of free memory that the cache was planned for."""
        return self.geometry.memory_bytes

    def keeping(self, checkpoint_format: StateFormat) -> "Cache":
        """Plan the same memory for checkpoints of another format."""
        if self.model is None or self.deployment is None or checkpoint_format == RUNNING:
            return self
        return plan_cache(self.model, self.memory_bytes, self.deployment, checkpoint_format)

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens drafted beyond the one sampled."""
        return self.geometry.decode_tokens - 1

    @property
    def leaves_states_inside(self) -> bool:
        """Whether forwards leave states inside chunks of prompts, as level ``natural`` decides.

        No forward converts states. Beside drafts some layers cannot, nor can a drafter's own.
        """
        if any(group.kept_pool is not None for group in self.geometry.groups):
            return False
        if self.model is None or not self.num_speculative_tokens:
            return True
        drafted = any(isinstance(layer.cache, State) for layer in self.model.draft_layers)
        states = (layer.cache for layer in self.model.layers if isinstance(layer.cache, State))
        return not drafted and all(state.is_left_beside_drafts for state in states)


def model_cache(model: str, memory: str | int, deployment: Deployment) -> Cache:
    """Plan ``memory`` for a model: a name of the model table, or a ``config.json``."""
    memory_bytes = memory if isinstance(memory, int) else parse_memory(memory)
    return plan_cache(load_model(model), memory_bytes, deployment)


def plan_cache(
    model: Model,
    memory_bytes: int,
    deployment: Deployment,
    checkpoint_format: StateFormat = RUNNING,
) -> Cache:
    """Plan a memory of this size for a model."""
    geometry = plan_natural(model, memory_bytes, deployment, checkpoint_format)
    num_blocks = geometry.num_slabs * max(group.blocks_per_slab for group in geometry.groups)
    if num_blocks > MAX_BLOCKS:
        raise ReplayError(
            f"{human(memory_bytes)} hold {num_blocks:,} blocks of {model.name}; a replay keeps "
            f"track of {MAX_BLOCKS:,} at most: give less memory or a larger --block-size"
        )
    return Cache(geometry=geometry, model=model, deployment=deployment)


def block_cache(num_blocks: int, block_size: int) -> Cache:
    """Make a cache of ``num_blocks`` blocks to hand out, the null block not counted."""
    if num_blocks < 1:
        raise ReplayError(f"a pool of {num_blocks} blocks can serve nothing; give it at least 1")
    group = GroupPlan(
        name=FullAttention.kind,
        kind=FullAttention.kind,
        layers=(0,),
        page_bytes=(block_size,),
        block_tokens=block_size,
        block_bytes=block_size,
        block_stride=block_size,
        blocks_per_slab=1,
        pool=0,
    )
    geometry = ArenaPlan(
        groups=(group,),
        slab_bytes=block_size,
        num_slabs=num_blocks + 1,
        hash_block_size=block_size,
        memory_bytes=(num_blocks + 1) * block_size,
        decode_tokens=1,
        in_flight_tokens=1,
    )
    return Cache(geometry=geometry)


def read_num_blocks(text: str, trace: Trace, block_size: int) -> int:
    """Read a number of blocks, or `UNBOUNDED`.

    Unbounded are as many blocks as all requests would take if none shared or gave back any.
    """
    if text == UNBOUNDED:
        return int((-(-trace.total_tokens // block_size)).sum())
    if not (text.isascii() and text.isdecimal() and text.strip("0")):
        raise ReplayError(f"--num-blocks {text!r} is neither a number of blocks nor {UNBOUNDED!r}")
    return parse_count(text, "--num-blocks", MAX_BLOCKS)


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
    states = sum(group.block_bytes for group in geometry.groups if group.kind == State.kind)
    return block * sharing.unique_blocks + states * sharing.resume_points
