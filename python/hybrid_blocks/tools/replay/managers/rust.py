"""The Rust manager over the natural geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from hybrid_blocks import BlockManager, CheckpointPolicy, GroupSpec, block_hasher
from hybrid_blocks.model.layer import FullAttention, LatentAttention, StateFormat
from hybrid_blocks.tools.plan import GroupPlan
from hybrid_blocks.tools.replay.cache import Cache, unit_of
from hybrid_blocks.tools.replay.config import EngineConfig
from hybrid_blocks.tools.replay.manager import Counts, Handles, ReplayManager
from hybrid_blocks.tools.replay.places import PlaceCounter
from hybrid_blocks.tools.trace.sharing import Signal, Signals

HINTS = {Signal.DONE: "done", Signal.GOES_ON: "going_on", Signal.PAUSED: "paused"}
"""The names of signals in `BlockManager.add_request`."""

_GROUP_AND_BLOCKS: Final = 3
"""Columns of copies that name no pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RustOptions:
    """How the cache behaves.

    Attributes:
        placement: where states are kept; None for the default.
        signals: what the client of each request of the trace says of its session, if it says it.
        places: counts checkpoints by their place; of one run only.
        with_film: keep a film, see `FilmedManager`.
        host_bytes: host memory below the device; 0 for none.
    """

    placement: CheckpointPolicy | None = None
    signals: Signals | None = None
    places: PlaceCounter | None = None
    with_film: bool = False
    host_bytes: int = 0

    @property
    def checkpoint_format(self) -> StateFormat:
        """How checkpoints are kept."""
        kept: StateFormat = (self.placement or CheckpointPolicy()).options["format"]
        return kept


class RustManager(ReplayManager):
    """The rules of level ``natural`` as the engine drives them.

    A step's copies are taken when it is computed, as vLLM's scheduler hands them out with the step.
    """

    looks_again = True

    def __init__(self, core: BlockManager, cache: Cache, options: RustOptions) -> None:
        self.core = core
        self._geometry = geometry = cache.geometry
        self.unit = unit_of(geometry, has_model=cache.model is not None)
        self.weighs_prompts = any(it.slots_per_request is not None for it in geometry.groups)
        placement = options.placement or CheckpointPolicy()
        self.step_tokens = placement.options["step_tokens"] or 0
        self._pools = range(len(geometry.pools))
        self._block_bytes = [group.block_bytes for group in geometry.groups]
        self._num_lookahead_tokens = cache.num_speculative_tokens
        self._signals, self._places = options.signals, options.places

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request; ``request_id`` is its index in the trace."""
        hint = None if self._signals is None else HINTS[Signal(self._signals[int(request_id)])]
        handle = self.core.add_request(request_id, tokens, hint=hint)
        if self._places is not None:
            self._places.register(handle, int(request_id))
        return handle

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens the prefix cache holds."""
        return self.core.match_prefix(handle)

    def append_tokens(self, handles: Handles, tokens: Counts) -> None:
        """Append one sampled token to each request."""
        self.core.append_tokens(handles, tokens)

    def preempt(self, handles: Handles) -> None:
        """Give back the blocks of requests, to be computed again."""
        self.core.preempt(handles)

    def stats(self) -> dict[str, int]:
        """Return the counters of the core."""
        return self.core.stats()

    def waits_for_checkpoint(self, handle: int) -> bool:
        """Return whether a request waits for a checkpoint that another one leaves in this step."""
        return self.core.waits_for_checkpoint(handle)

    def num_uncached(self, handle: int) -> int:
        """Return how many tokens a waiting request would compute now."""
        return self.core.num_uncached(handle)

    def chunk(self, handle: int, start: int, num_new_tokens: int) -> int:
        """End the chunk where a checkpoint is to be taken."""
        return self.core.chunk(handle, start, num_new_tokens)

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Run the step's copies, and record that tokens were computed."""
        self.core.take_copies()
        self.core.take_prefill_checkpoints()
        self.core.advance(handles, num_tokens)

    def free(self, handles: Handles) -> None:
        """Give back the blocks of requests and forget the requests."""
        if self._places is not None:
            self._places.read(self.core.take_events())
        self.core.free(handles)
        if self._places is not None:
            self._places.read(self.core.take_events())
            self._places.finish(handles)

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        """Make room for new tokens, and for the drafts after them."""
        return self.core.allocate(handles, num_new_tokens, self._num_lookahead_tokens)

    def begin_step(self) -> None:
        """Let time pass."""
        self.core.tick()
        if self._places is not None:
            self._places.read(self.core.take_events())

    def could_hold(self, num_tokens: int, under_way: Sequence[tuple[int, int]]) -> bool:
        """Count pool by pool the blocks with an owner, those promised and those asked for."""
        geometry = self._geometry
        needed = list(geometry.prefill_blocks(num_tokens))
        for computed, known in under_way:
            whole, held = geometry.prefill_blocks(known), geometry.prefill_blocks(computed)
            needed = [n + w - h for n, w, h in zip(needed, whole, held, strict=True)]
        slabs = (
            -(-(self.core.num_live_blocks(pool=pool) + blocks) // cut)
            for pool, (cut, blocks) in enumerate(zip(geometry.pools, needed, strict=True))
        )
        return sum(slabs) <= geometry.usable_slabs

    @property
    def num_blocks(self) -> int:
        """Slabs, or blocks where there is one pool of whole slabs."""
        return self.core.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks of these that hold nothing but cached content."""
        return self.core.num_free_blocks

    @property
    def num_live_blocks(self) -> tuple[int, ...]:
        """Blocks with an owner, pool by pool."""
        return tuple(self.core.num_live_blocks(pool=pool) for pool in self._pools)

    @property
    def used_bytes(self) -> int:
        """Bytes of slabs that hold a request's block."""
        return (self.core.num_blocks - self.core.num_free_blocks) * self._geometry.slab_bytes

    def reserved_bytes(self) -> dict[str, int]:
        """Return what ``used_bytes`` are held for, by part."""
        return self.core.reserved_bytes(self._geometry.slab_bytes, self._block_bytes)

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""
        return self.core.max_request_tokens


ManagerT = TypeVar("ManagerT", bound=RustManager)


def make_rust(
    cache: Cache, config: EngineConfig, options: RustOptions, kind: type[ManagerT]
) -> ManagerT:
    """Make a Rust manager: one pool of blocks where that evicts alike, else an arena.

    In one pool eviction goes by age, but windows are kept where they are needed.
    """
    geometry = cache.geometry
    groups = [group_spec(group) for group in geometry.groups]
    hasher = block_hasher(block_size=geometry.hash_block_size)
    has_windows = any(group.window is not None for group in geometry.groups)
    has_states = any(group.slots_per_request is not None for group in geometry.groups)
    if geometry.pools == (1,) and not has_windows and not has_states:
        sizes: dict[str, object] = {"num_blocks": geometry.num_slabs}
    else:
        sizes = {"num_slabs": geometry.num_slabs, "blocks_per_slab": list(geometry.pools)}
    alignment = config.prefill_checkpoint_alignment if cache.leaves_states_inside else None
    core = BlockManager(
        groups,
        hasher,
        placement=options.placement,
        max_in_flight_tokens=geometry.in_flight_tokens,
        max_request_tokens=cache.deployment.max_model_len if cache.deployment else None,
        prefill_checkpoint_alignment=alignment,
        watermark=int(config.watermark * (geometry.num_slabs - 1)),
        enable_events=options.places is not None or options.with_film or options.host_bytes > 0,
        **sizes,  # type: ignore[arg-type]
    )
    return kind(core, cache, options)


def pools_of(copies: npt.NDArray[np.int32], pools: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the pools of both blocks of each copy: those that it names, else its group's."""
    return copies[:, 3:] if copies.shape[1] > _GROUP_AND_BLOCKS else pools[copies[:, [0, 0]]]


def group_spec(group: GroupPlan) -> GroupSpec:
    """Return a planned group as the manager takes it."""
    return GroupSpec(
        FullAttention.kind if group.kind == LatentAttention.kind else group.kind,
        group.block_tokens,
        window=group.window,
        slots=group.slots_per_request,
        encoder_tokens=group.encoder_tokens,
        pool=group.pool,
        kept_pool=group.kept_pool,
    )
