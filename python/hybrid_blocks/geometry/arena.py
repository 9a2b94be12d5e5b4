"""The geometry of an arena: slabs, pools and the blocks of each layer group.

Slab 0 holds nothing but the null blocks. Every other slab belongs to one pool at a time, which cuts
it into ``blocks_per_slab`` blocks of ``block_stride`` bytes:

    block id = slab * blocks_per_slab + index
    address  = arena + block id * block_stride        (blocks_per_slab * block_stride = slab_bytes)

With ``num_regions`` above 1, this holds in each region with a ``num_regions``-th of the stride;
see ``geometry/layout.py``. Groups whose slabs are cut alike share a pool. A state slot is a slab.
Checkpoints in another format than running states have a pool of their own.
"""

import msgspec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.model.kind import GroupKind


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share a block table.

    A block holds, for each layer in turn, one page of ``page_bytes[i]`` bytes: ``block_tokens``
    tokens, or one state. ``block_bytes`` is their sum, nothing else; ``block_stride`` is the
    distance between blocks. ``window`` is the sliding window or the chunk. State groups take
    ``slots_per_request`` blocks for a request's whole life; their ``block_tokens`` is the grain of
    lengths at which a checkpoint may be kept. ``encoder_tokens`` is set for cross attention.
    ``page_bytes`` are those of the pipeline stage on which the group is widest. Where checkpoints
    have another format than running states, ``kept_per_slab`` of them lie in a slab of
    ``kept_pool``.
    """

    name: str
    kind: str
    layers: tuple[int, ...]
    page_bytes: tuple[int, ...]
    block_tokens: int
    block_bytes: int
    block_stride: int
    blocks_per_slab: int
    pool: int
    window: int | None = None
    slots_per_request: int | None = None
    encoder_tokens: int | None = None
    kept_pool: int | None = None
    kept_per_slab: int | None = None

    @property
    def rules(self) -> GroupKind:
        """Which tokens of a request the group still reads."""
        return GroupKind(name=self.kind, window=self.window, encoder_tokens=self.encoder_tokens)

    @property
    def grows(self) -> bool:
        """Whether a request's blocks keep growing with its length."""
        return self.rules.grows

    def blocks(self, length: int, scheduled_tokens: int) -> int:
        """Most blocks a request holds at once on its way to ``length`` tokens.

        ``scheduled_tokens`` are added in one step; what a step leaves behind goes back after it.
        """
        if self.slots_per_request is not None:
            return self.slots_per_request
        return self.rules.peak_blocks(length, scheduled_tokens, self.block_tokens)

    def live_bytes(self, length: int) -> int:
        """Bytes that a request of ``length`` tokens needs, with no rounding to blocks."""
        if self.slots_per_request is not None:
            return self.slots_per_request * self.block_bytes
        tokens = self.rules.num_live_tokens(length)
        return tokens * self.block_bytes // self.block_tokens


class ArenaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An arena of ``num_slabs`` slabs, slab 0 included, in ``memory_bytes`` of free memory.

    ``decode_tokens`` are scheduled for each request in a decode step; ``in_flight_tokens`` is the
    most that may be scheduled, and not yet settled, for all requests together.
    """

    groups: tuple[GroupPlan, ...]
    slab_bytes: int
    num_slabs: int
    hash_block_size: int
    memory_bytes: int
    decode_tokens: int
    in_flight_tokens: int
    num_regions: int = 1

    def num_slots(self, group: GroupPlan) -> int | None:
        """Token slots that a group addresses: its largest slot-mapping value plus 1.

        ``num_slabs * blocks_per_slab * block_tokens``; None for states, which have no slots.
        """
        if group.slots_per_request is not None:
            return None
        return self.num_slabs * group.blocks_per_slab * group.block_tokens

    @property
    def usable_slabs(self) -> int:
        """Slabs without the null slab."""
        return self.num_slabs - 1

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena, null slab included."""
        return self.num_slabs * self.slab_bytes

    @property
    def pools(self) -> tuple[int, ...]:
        """Blocks per slab of each pool."""
        cuts = {group.pool: group.blocks_per_slab for group in self.groups}
        cuts |= {
            group.kept_pool: group.kept_per_slab
            for group in self.groups
            if group.kept_pool is not None and group.kept_per_slab is not None
        }
        return tuple(cuts[pool] for pool in range(len(cuts)))

    def decode_blocks(self, length: int) -> tuple[int, ...]:
        """Most blocks of each pool that a request holds while it decodes up to ``length``."""
        return self._pool_blocks(length, self.decode_tokens)

    def prefill_blocks(self, length: int) -> tuple[int, ...]:
        """Most blocks of each pool for a request whose prefill fills all steps in flight."""
        return self._pool_blocks(length, self.in_flight_tokens)

    def slabs(self, requests: int, length: int) -> int:
        """Slabs that ``requests`` of ``length`` tokens need, when one prefills and the rest decode.

        The batch in flight is shared by all requests, so its tokens count once.
        """
        if requests == 0:
            return 0
        pools = zip(
            self.pools, self.decode_blocks(length), self.prefill_blocks(length), strict=True
        )
        return sum(
            ceil_div((requests - 1) * decode + prefill, cut) for cut, decode, prefill in pools
        )

    def live_bytes(self, length: int) -> int:
        """Bytes that a request of ``length`` tokens needs at its end."""
        return sum(group.live_bytes(length) for group in self.groups)

    def _pool_blocks(self, length: int, scheduled_tokens: int) -> tuple[int, ...]:
        blocks = [0] * len(self.pools)
        for group in self.groups:
            blocks[group.pool] += group.blocks(length, scheduled_tokens)
        return tuple(blocks)
